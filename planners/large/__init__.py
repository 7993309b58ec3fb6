"""Large models on one kind of device: tensor × pipeline × data × micro-batch × ZeRO × stages per device, by a closed form."""

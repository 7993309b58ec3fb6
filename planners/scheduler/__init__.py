"""Scheduler: an order of the ops of every device with the least makespan, under a limit on memory per device."""

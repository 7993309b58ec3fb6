"""AlexNet: five convolutions and three fully connected layers, the one-tower form.

Krizhevsky 2014 ("One weird trick"), as torchvision ships it: 61,100,840 parameters.
"""

from __future__ import annotations

from simulator.workloads import convolutional as op
from simulator.workloads.builder import Builder
from simulator.workloads.layers import Workload


def alexnet(*, image_size: int = 224, classes: int = 1000, minibatch: int = 256) -> Workload:
    """AlexNet on square RGB images whose last feature map is 6x6 (224 to 254 pixels); a sample is an image.

    The default mini-batch is PipeDream's (SOSP'19, section 5.1). Raises ValueError.
    """
    builder = Builder()
    x = op.image(builder, 3, image_size)
    x = op.convolution(builder, "conv1", x, 64, op.Window(11, 4, 2))
    x = op.relu(builder, "relu1", x)
    x = op.max_pool(builder, "pool1", x, op.Window(3, 2))
    x = op.convolution(builder, "conv2", x, 192, op.Window(5, padding=2))
    x = op.relu(builder, "relu2", x)
    x = op.max_pool(builder, "pool2", x, op.Window(3, 2))
    for number, channels in ((3, 384), (4, 256), (5, 256)):
        x = op.convolution(builder, f"conv{number}", x, channels, op.Window(3, padding=1))
        x = op.relu(builder, f"relu{number}", x)
    x = op.max_pool(builder, "pool5", x, op.Window(3, 2))
    if x.size != 6:
        raise ValueError(f"AlexNet image_size must give a 6x6 last feature map (224 to 254), got {image_size}")
    x = op.flatten(builder, "flatten", x)
    for number in (6, 7):
        x = op.dropout(builder, f"dropout{number}", x)
        x = op.linear(builder, f"fc{number}", x, 4096)
        x = op.relu(builder, f"relu{number}", x)
    x = op.linear(builder, "fc8", x, classes)
    op.cross_entropy(builder, "loss", x)
    return builder.build("alexnet", sample="image", minibatch=minibatch)

"""Image networks: AlexNet, VGG, ResNet, MobileNet and EfficientNet on square RGB images of 224 pixels, one layer per operator;
a sample is an image.

Sizes and parameters are torchvision's, mini-batches of the first three PipeDream's (SOSP'19, section 5.1), of the others chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.workloads.builder import FP32, INDEX, MASK, Builder
from simulator.workloads.layers import Layer, Workload

SIDE, CLASSES = 224, 1000
"""Pixels per side of the image, and number of classes."""

VGG_CHANNELS = (64, 128, 256, 512, 512)
"""Channels of each of the five blocks."""

RESNET_EXPANSION = 4
"""Channels out of a bottleneck block over channels inside."""

MOBILENET_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
"""Channels made and stride of each depthwise separable convolution (Howard et al. 2017, table 1)."""

MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels made, blocks and stride of each stage (Sandler et al. 2018, table 2)."""

EFFICIENTNET_B0 = (
    *((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)),
    *((6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)),
)
"""Expansion, kernel, stride, channels made and blocks of each stage (Tan and Le 2019, table 1)."""

SQUEEZED = 4
"""Channels that a block of EfficientNet reads over those between the two products that weigh its channels."""


def alexnet() -> Workload:
    """AlexNet: five convolutions and three fully connected layers, the one-tower form.

    Krizhevsky 2014 ("One weird trick"): 61,100,840 parameters.
    """
    net = _ImageNetwork()
    for number, (channels, window) in enumerate(
        ((64, (11, 4, 2)), (192, (5, 1, 2)), (384, (3, 1, 1)), (256, (3, 1, 1)), (256, (3, 1, 1))), 1
    ):
        net.convolution(f"conv{number}", channels, *window)
        net.relu(f"relu{number}")
        if number in (1, 2, 5):
            net.max_pool(f"pool{number}", 3, 2)
    net.flatten()
    for number in (6, 7):
        net.dropout(f"dropout{number}")
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
    return net.classified("fc8", "alexnet", minibatch=256)


def vgg16() -> Workload:
    """VGG-16: 138,357,544 parameters, 30.94 GFLOP per image."""
    return _vgg("vgg16", (2, 2, 3, 3, 3))


def vgg19() -> Workload:
    """VGG-19: 143,667,240 parameters."""
    return _vgg("vgg19", (2, 2, 4, 4, 4))


def resnet50() -> Workload:
    """ResNet-50: 25,557,032 parameters, 8.18 GFLOP per image."""
    return _resnet("resnet50", (3, 4, 6, 3))


def resnet101() -> Workload:
    """ResNet-101: 44,549,160 parameters."""
    return _resnet("resnet101", (3, 4, 23, 3))


def mobilenet_v1() -> Workload:
    """MobileNet v1 at full width: a depthwise and a 1x1 convolution in turn; 4,231,976 parameters.

    Howard et al. 2017, table 1.
    """
    net = _ImageNetwork()
    net.normalized("conv1", "bn1", 32, 3, 2, 1)
    net.relu("relu1")
    for number, (channels, stride) in enumerate(MOBILENET_V1, 2):
        net.normalized(f"conv{number}.depthwise", f"bn{number}.depthwise", net.x.channels, 3, stride, 1, depthwise=True)
        net.relu(f"relu{number}.depthwise")
        net.normalized(f"conv{number}", f"bn{number}", channels, 1)
        net.relu(f"relu{number}")
    net.global_average_pool("pool")
    net.flatten()
    return net.classified("fc", "mobilenet-v1", minibatch=128)


def mobilenet_v2() -> Workload:
    """MobileNet v2 at full width: inverted residual blocks; 3,504,872 parameters.

    Sandler et al. 2018, table 2.
    """
    net = _ImageNetwork()
    net.normalized("conv1", "bn1", 32, 3, 2, 1)
    net.relu("relu1")
    for stage, (expansion, channels, count, stride) in enumerate(MOBILENET_V2, 2):
        for block in range(1, count + 1):
            net.inverted_residual(f"conv{stage}_{block}", expansion, 3, stride if block == 1 else 1, channels)
    net.normalized("conv9", "bn9", 1280, 1)
    net.relu("relu9")
    net.global_average_pool("pool")
    net.flatten()
    net.dropout("dropout")
    return net.classified("fc", "mobilenet-v2", minibatch=128)


def efficientnet_b0() -> Workload:
    """EfficientNet-B0: inverted residual blocks whose channels are weighed, with SiLU; 5,288,548 parameters.

    Tan and Le 2019, table 1.
    """
    net = _ImageNetwork()
    net.normalized("conv1", "bn1", 32, 3, 2, 1)
    net.silu("silu1")
    for stage, (expansion, kernel, stride, channels, count) in enumerate(EFFICIENTNET_B0, 2):
        for block in range(1, count + 1):
            step = stride if block == 1 else 1
            net.inverted_residual(f"conv{stage}_{block}", expansion, kernel, step, channels, weighed=True)
    net.normalized("conv9", "bn9", 1280, 1)
    net.silu("silu9")
    net.global_average_pool("pool")
    net.flatten()
    net.dropout("dropout")
    return net.classified("fc", "efficientnet-b0", minibatch=128)


def _vgg(name: str, convolutions: tuple[int, ...]) -> Workload:
    """VGG: blocks of so many 3x3 convolutions each, then three fully connected layers.

    Simonyan & Zisserman 2015, table 1, columns D (VGG-16) and E (VGG-19).
    """
    net = _ImageNetwork()
    for block, (count, channels) in enumerate(zip(convolutions, VGG_CHANNELS, strict=True), 1):
        for number in range(1, count + 1):
            net.convolution(f"conv{block}_{number}", channels, 3, 1, 1)
            net.relu(f"relu{block}_{number}")
        net.max_pool(f"pool{block}", 2, 2)
    net.flatten()
    for number in (6, 7):
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
        net.dropout(f"dropout{number}")
    return net.classified("fc8", name, minibatch=64)


def _resnet(name: str, blocks: tuple[int, ...]) -> Workload:
    """ResNet: four stages of so many bottleneck blocks, whose shortcuts make the graph a DAG, not a chain.

    He et al. 2016, table 1, with the stride on the 3x3 convolution of a block (the "v1.5" of torchvision and of
    PipeDream's profile).
    """
    net = _ImageNetwork()
    net.normalized("conv1", "bn1", 64, 7, 2, 3)
    net.relu("relu1")
    net.max_pool("pool1", 3, 2, 1)
    for stage, count in enumerate(blocks, 2):
        for block in range(1, count + 1):
            net.bottleneck(f"conv{stage}_{block}", 64 * 2 ** (stage - 2), 2 if stage > 2 and block == 1 else 1)
    net.global_average_pool("pool5")
    net.flatten()
    return net.classified("fc", name, minibatch=128)


@dataclass(frozen=True, slots=True)
class _FeatureMap:
    """A tensor of square images: builder handle, channels, and pixels of one side (1 for a vector of features)."""

    tensor: int
    channels: int
    size: int

    @property
    def elements(self) -> int:
        """Elements per sample."""
        return self.channels * self.size * self.size


class _ImageNetwork:
    """One network while it is built: an operator reads the tensor `x` that was made last, and makes the next.

    kernel, stride, padding: pixels of a side of a window, of its step, and of the zeros around the image
    """

    def __init__(self) -> None:
        self.builder = Builder()
        self.x = _FeatureMap(self.builder.source(3 * SIDE * SIDE), 3, SIDE)  # no layer: the data loader makes it

    def convolution(
        self,
        name: str,
        channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
        depthwise: bool = False,
    ) -> None:
        """Square convolution: 2·kernel²·channels_in FLOP per output element; depthwise: each channel reads its own alone."""
        read = 1 if depthwise else self.x.channels
        size, window = self._places(kernel, stride, padding), kernel * kernel * read
        output, weights = channels * size * size, window * channels + (channels if bias else 0)
        layer = Layer(
            name,
            "convolution",
            flop=2.0 * window * output,
            parameters=weights,
            output_elements=output,
            channels=(1, 1) if depthwise else (read, channels),
        )
        self._add(layer, channels, size)

    def normalized(
        self,
        name: str,
        norm: str,
        channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        *,
        depthwise: bool = False,
    ) -> None:
        """Convolution without bias, then batch normalization with scale and shift."""
        self.convolution(name, channels, kernel, stride, padding, bias=False, depthwise=depthwise)
        self._same(norm, "normalization", parameters=2 * channels)

    def bottleneck(self, name: str, width: int, stride: int) -> None:
        """1x1 down to `width`, 3x3, 1x1 up to 4·width; 1x1 on the shortcut where the shape changes; their sum in place."""
        before, wide = self.x, RESNET_EXPANSION * width
        self.normalized(f"{name}.conv1", f"{name}.bn1", width, 1)
        self.relu(f"{name}.relu1")
        self.normalized(f"{name}.conv2", f"{name}.bn2", width, 3, stride, 1)
        self.relu(f"{name}.relu2")
        self.normalized(f"{name}.conv3", f"{name}.bn3", wide, 1)
        main, self.x = self.x, before
        if stride != 1 or before.channels != wide:
            self.normalized(f"{name}.downsample", f"{name}.downsample_bn", wide, 1, stride)
        layer = Layer(f"{name}.add", "elementwise", output_elements=main.elements)
        self.x = replace(main, tensor=self.builder.add(layer, [main.tensor, self.x.tensor], in_place=True))
        self.relu(f"{name}.relu3")

    def inverted_residual(
        self, name: str, expansion: int, kernel: int, stride: int, channels: int, *, weighed: bool = False
    ) -> None:
        """1x1 up to `expansion` times the channels, depthwise, 1x1 down; their sum with what was read where the shape stays.

        weighed: with SiLU, and a weight for each channel after the depthwise convolution, as EfficientNet has them; else with
            ReLU (of which those that end at 6 do as much)
        """
        before, wide = self.x, expansion * self.x.channels
        activation = self.silu if weighed else self.relu
        if expansion > 1:
            self.normalized(f"{name}.conv1", f"{name}.bn1", wide, 1)
            activation(f"{name}.activation1")
        self.normalized(f"{name}.conv2", f"{name}.bn2", wide, kernel, stride, kernel // 2, depthwise=True)
        activation(f"{name}.activation2")
        if weighed:
            self.weighed_channels(f"{name}.weigh", before.channels // SQUEEZED)
        self.normalized(f"{name}.conv3", f"{name}.bn3", channels, 1)
        if stride == 1 and before.channels == channels:
            layer = Layer(f"{name}.add", "elementwise", output_elements=before.elements)
            added = self.builder.add(layer, [before.tensor, self.x.tensor])
            self.x = replace(before, tensor=added)

    def weighed_channels(self, name: str, squeezed: int) -> None:
        """Each channel times a weight, which two products make of the means of all (Hu et al. 2018)."""
        features = self.x
        self.global_average_pool(f"{name}.pool")
        self.convolution(f"{name}.conv1", squeezed, 1)
        self.silu(f"{name}.silu")
        self.convolution(f"{name}.conv2", features.channels, 1)
        self._same(f"{name}.sigmoid", "activation", in_place=True)
        layer = Layer(f"{name}.multiply", "elementwise", output_elements=features.elements)
        product = self.builder.add(layer, [features.tensor, self.x.tensor], keeps_inputs=True)
        self.x = replace(features, tensor=product)

    def relu(self, name: str) -> None:
        """ReLU in place."""
        self._same(name, "activation", in_place=True)

    def silu(self, name: str) -> None:
        """SiLU, which keeps what it reads: its backward needs it."""
        layer = Layer(name, "activation", output_elements=self.x.elements)
        added = self.builder.add(layer, [self.x.tensor], keeps_inputs=True)
        self.x = replace(self.x, tensor=added)

    def max_pool(self, name: str, kernel: int, stride: int, padding: int = 0) -> None:
        """Max pooling; it keeps the index of every maximum."""
        size = self._places(kernel, stride, padding)
        output = self.x.channels * size * size
        layer = Layer(name, "pooling", output_elements=output, stashed_bytes=INDEX * output)
        self._add(layer, self.x.channels, size)

    def global_average_pool(self, name: str) -> None:
        """Mean over all pixels of each channel."""
        self._add(Layer(name, "pooling", output_elements=self.x.channels), self.x.channels)

    def flatten(self) -> None:
        """View as one vector per sample."""
        self._add(Layer("flatten", "reshape", output_elements=self.x.elements), self.x.elements, in_place=True)

    def linear(self, name: str, features: int) -> None:
        """Fully connected layer with bias."""
        weights = self.x.channels * features
        layer = Layer(name, "linear", flop=2.0 * weights, parameters=weights + features, output_elements=features)
        self._add(layer, features)

    def dropout(self, name: str) -> None:
        """Dropout out of place; it keeps a mask of one byte per element."""
        self._same(name, "dropout", stashed_bytes=MASK * self.x.elements)

    def classified(self, head: str, name: str, *, minibatch: int) -> Workload:
        """The workload, ended by a linear head and the cross-entropy, which keeps the log-probabilities."""
        self.linear(head, CLASSES)
        self._add(Layer("loss", "loss", output_elements=1, stashed_bytes=FP32 * CLASSES), 1)
        return self.builder.build(name, sample="image", minibatch=minibatch)

    def _places(self, kernel: int, stride: int, padding: int) -> int:
        """Number of places of a window along a side: pixels of a side of the output."""
        return (self.x.size + 2 * padding - kernel) // stride + 1

    def _same(
        self, name: str, kind: str, *, parameters: int = 0, stashed_bytes: float = 0.0, in_place: bool = False
    ) -> None:
        """A layer that changes no shape."""
        layer = Layer(name, kind, 0.0, parameters, self.x.elements, stashed_bytes=stashed_bytes)
        self._add(layer, self.x.channels, self.x.size, in_place=in_place)

    def _add(self, layer: Layer, channels: int, size: int = 1, *, in_place: bool = False) -> None:
        self.x = _FeatureMap(self.builder.add(layer, [self.x.tensor], in_place=in_place), channels, size)

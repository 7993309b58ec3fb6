"""Public names, each in its module; loaded when they are first used."""

from .accelerator import (
    LAYER_KINDS as LAYER_KINDS,
    PRECISION_BYTES as PRECISION_BYTES,
    Accelerator as Accelerator,
    Phase as Phase,
    Precision as Precision,
    StreamingAccelerator as StreamingAccelerator,
    Work as Work,
    passes as passes,
    streaming as streaming,
)
from .cluster import (
    Cluster as Cluster,
    ClusterSource as ClusterSource,
    Component as Component,
    Flow as Flow,
    Level as Level,
)
from .collectives import Rates as Rates, halved as halved, reduce_seconds as reduce_seconds
from .fpga import FieldProgrammableGateArray as FieldProgrammableGateArray
from .gpu import GraphicsProcessor as GraphicsProcessor
from .links import Channel as Channel, Link as Link
from .load import (
    ProfileError as ProfileError,
    UnknownProfileError as UnknownProfileError,
    accelerator_names as accelerator_names,
    check_file as check_file,
    cluster_names as cluster_names,
    load_accelerator as load_accelerator,
    load_cluster as load_cluster,
    schema as schema,
)
from .plugins import passed_over as passed_over, plugged_in as plugged_in, summary_of as summary_of
from .reading import (
    MOST_BYTES as MOST_BYTES,
    brief as brief,
    explained as explained,
    legible as legible,
    one_line as one_line,
    printable as printable,
    read_bytes as read_bytes,
    remembering as remembering,
    shown as shown,
    unknown as unknown,
)

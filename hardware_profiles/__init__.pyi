"""Public names, each in its module; loaded when they are first used."""

from .accelerator import (
    BACKWARD_LAUNCHES as BACKWARD_LAUNCHES,
    LAYER_KINDS as LAYER_KINDS,
    PRECISION_BYTES as PRECISION_BYTES,
    FOR_INFERENCE as FOR_INFERENCE,
    RECIPES as RECIPES,
    Accelerator as Accelerator,
    Phase as Phase,
    Power as Power,
    Precision as Precision,
    StreamingAccelerator as StreamingAccelerator,
    Work as Work,
    answered_seconds as answered_seconds,
    of_another_package as of_another_package,
    optional_members as optional_members,
    passes as passes,
    streaming as streaming,
)
from .addresses import (
    Address as Address,
    Change as Change,
    Setting as Setting,
    SettingError as SettingError,
    addresses_of as addresses_of,
    find_address as find_address,
    is_real as is_real,
    read_setting as read_setting,
    set_in as set_in,
    settings_of as settings_of,
    value_words as value_words,
    values_in as values_in,
)
from .array_types import Flags as Flags, Floats as Floats, Integers as Integers
from .cluster import (
    Cluster as Cluster,
    ClusterSource as ClusterSource,
    Component as Component,
    Flow as Flow,
    Level as Level,
    cluster_of_one as cluster_of_one,
)
from .collectives import (
    Rates as Rates,
    one_after_the_other as one_after_the_other,
    reduce_seconds as reduce_seconds,
    scaled as scaled,
)
from .documents import explained as explained, json_value as json_value
from .fabrics import Operation as Operation
from .grids import Grid as Grid, find_grid as find_grid
from .fields import (
    FieldError as FieldError,
    check_kind as check_kind,
    check_known as check_known,
    path_text as path_text,
)
from .field_types import check_fields as check_fields, msgspec_type as msgspec_type
from .fpga_division import Divisions as Divisions
from .fpga import FieldProgrammableGateArray as FieldProgrammableGateArray
from .gpu import (
    VECTOR_PRECISION as VECTOR_PRECISION,
    GraphicsProcessor as GraphicsProcessor,
    demand as demand,
)
from .links import Channel as Channel, Link as Link
from .load import (
    MACHINE_FORMS as MACHINE_FORMS,
    PROFILES as PROFILES,
    MachineTables as MachineTables,
    FileKind as FileKind,
    ProfileError as ProfileError,
    ProfileWordsError as ProfileWordsError,
    UnknownProfileError as UnknownProfileError,
    accelerator_names as accelerator_names,
    check_file as check_file,
    check_profile as check_profile,
    cluster_names as cluster_names,
    errors_of as errors_of,
    load_accelerator as load_accelerator,
    load_cluster as load_cluster,
    load_stack as load_stack,
    machine_tables as machine_tables,
    profile_kinds as profile_kinds,
    profile_text as profile_text,
    prediction_error as prediction_error,
    schema as schema,
    stack_of_table as stack_of_table,
    tables_with_accelerators as tables_with_accelerators,
    toml_table as toml_table,
    stack_names as stack_names,
    user_roots as user_roots,
)
from .numbers import (
    LEAST_WATTS as LEAST_WATTS,
    MOST_AMOUNT as MOST_AMOUNT,
    MOST_WATTS as MOST_WATTS,
    MOST_COUNT as MOST_COUNT,
    MOST_DEVICES as MOST_DEVICES,
    MOST_SEED as MOST_SEED,
    check_numbers as check_numbers,
    check_real as check_real,
    check_whole as check_whole,
    real_number as real_number,
    whole_number as whole_number,
)
from .option_declarations import (
    Bounds as Bounds,
    DeclaredOption as DeclaredOption,
    FileBounds as FileBounds,
    OptionValue as OptionValue,
    declared_options as declared_options,
    option_names as option_names,
    option_text as option_text,
    read_options as read_options,
)
from .plugins import (
    ENDED as ENDED,
    PluginError as PluginError,
    answering_for as answering_for,
    about as about,
    aside as aside,
    complaint_of as complaint_of,
    installed as installed,
    passed_over as passed_over,
    plugged_in as plugged_in,
    summary_of as summary_of,
)
from .prediction_errors import (
    ENOUGH as ENOUGH,
    ErrorClass as ErrorClass,
    Figure as Figure,
    PlanKind as PlanKind,
    PredictionError as PredictionError,
    accelerator_kind as accelerator_kind,
)
from .reading import (
    FileError as FileError,
    read_bytes as read_bytes,
    at_most as at_most,
    referred as referred,
    referring as referring,
    told_of as told_of,
    remembering as remembering,
)
from .rooflines import freed as freed
from .stack import (
    GENERIC as GENERIC,
    LANES as LANES,
    PRODUCTS as PRODUCTS,
    MEMORY_RANGES as MEMORY_RANGES,
    RANGES as RANGES,
    Constant as Constant,
    Runs as Runs,
    Stack as Stack,
)
from .stack_files import StackFile as StackFile
from .stack_writing import (
    changed_stack as changed_stack,
    changed_stack_text as changed_stack_text,
    errors_text as errors_text,
    toml_text as toml_text,
    whole_stack_table as whole_stack_table,
)
from .words import (
    blaming as blaming,
    GIB as GIB,
    brief as brief,
    counted as counted,
    gibibytes as gibibytes,
    legible as legible,
    nearest as nearest,
    one_line as one_line,
    percent as percent,
    printable as printable,
    shown as shown,
    unchosen as unchosen,
    unknown as unknown,
)

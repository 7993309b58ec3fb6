"""Public names, each in its module; loaded when they are first used."""

from .workloads.antichains import (
    AntichainStates as AntichainStates,
    antichain_states as antichain_states,
    down_sets as down_sets,
)
from .costs.given import (
    Bucket as Bucket,
    Costs as Costs,
    OpMemory as OpMemory,
    OpSeconds as OpSeconds,
    StageCollectives as StageCollectives,
    Transfer as Transfer,
    given_costs as given_costs,
)
from .plans.keys import Kept as Kept, kept_with_its_first as kept_with_its_first
from .plans.lacks import number_lacks as number_lacks, plan_lacks as plan_lacks, problem_lacks as problem_lacks
from .disturbances import check_disturbances as check_disturbances
from .evaluation import Evaluations as Evaluations
from .plan_energy import (
    Energy as Energy,
    energy as energy,
    joules_by_part as joules_by_part,
    moving_seconds as moving_seconds,
    told_power as told_power,
)
from .results.error_bars import error_of as error_of, plan_kind as plan_kind
from .link_loads import LinkLoads as LinkLoads
from .results.noisy_seconds import NoisySeconds as NoisySeconds
from .results.score import Score as Score
from .results.figures import save as save
from .results.written_files import FIGURE_ENDINGS as FIGURE_ENDINGS
from .results.written_files import figure_files as figure_files
from .results.written_files import write_atomically as write_atomically
from .results.gantt_plots import gantt as gantt
from .compiled.numba_kernels import kernel as kernel
from .costs.layer_costs import (
    GroupRates as GroupRates,
    LayerCosts as LayerCosts,
    SecondsOfStages as SecondsOfStages,
    launch_waits as launch_waits,
    measured_layer_seconds as measured_layer_seconds,
)
from .costs.lower_bound import (
    SLACK as SLACK,
    BoundTerm as BoundTerm,
    gap_above as gap_above,
    lower_bound as lower_bound,
)
from .workloads.shares import Parallelism as Parallelism
from .costs.stashes import (
    StageStash as StageStash,
    entering_bytes as entering_bytes,
    gradient_in_work as gradient_in_work,
    gradients_in_work as gradients_in_work,
    kept_bytes as kept_bytes,
    largest_parts as largest_parts,
    stage_stash as stage_stash,
)
from .workloads.layer_splits import (
    LayerSplit as LayerSplit,
    split_workload as split_workload,
    splittable_layers as splittable_layers,
)
from .workloads.layers import (
    Attention as Attention,
    Layer as Layer,
    Workload as Workload,
)
from .lowering.lower import check_schedule as check_schedule, lower as lower
from .engines.failing import Failing as Failing
from .goodput import Goodput as Goodput, goodput as goodput
from .options.disturbance_limits import (
    LEAST_SECONDS as LEAST_SECONDS,
    MOST_DAYS as MOST_DAYS,
    MOST_FACTOR as MOST_FACTOR,
    MOST_REPLAYS as MOST_REPLAYS,
    MOST_RUNS as MOST_RUNS,
    MOST_SECONDS as MOST_SECONDS,
    QUANTILES as QUANTILES,
)
from .options.training_options import (
    REPLICA_UPDATES as REPLICA_UPDATES,
    Communication as Communication,
    GradientBytes as GradientBytes,
    GradientReduction as GradientReduction,
    OptimizerName as OptimizerName,
    BY_BLOCK as BY_BLOCK,
    Recompute as Recompute,
    TrainingOptions as TrainingOptions,
)
from .memory.always_held import always_there as always_there
from .memory.device_memory import CATEGORIES as CATEGORIES, DeviceMemory as DeviceMemory
from .results.memory_tables import (
    ACTIVATIONS as ACTIVATIONS,
    activations_by_part as activations_by_part,
    peak_rows as peak_rows,
)
from .schedules.ops import (
    COLLECTIVE_KINDS as COLLECTIVE_KINDS,
    COMPUTE_KINDS as COMPUTE_KINDS,
    LETTERS as LETTERS,
    Op as Op,
    OpKind as OpKind,
)
from .plans.plan import (
    MOST_SAMPLES as MOST_SAMPLES,
    InfeasiblePlanError as InfeasiblePlanError,
    PlanNotRunError as PlanNotRunError,
    OPTIMIZER_STATES as OPTIMIZER_STATES,
    Plan as Plan,
    Problem as Problem,
    recompute_phrases as recompute_phrases,
    recompute_words as recompute_words,
    Stage as Stage,
    Zero as Zero,
    check_plan as check_plan,
    check_recompute as check_recompute,
    divisors as divisors,
    equal_microbatches as equal_microbatches,
    flushes as flushes,
    expert_degrees as expert_degrees,
    group_degrees as group_degrees,
    ranges as ranges,
    in_order as in_order,
    cuts_of as cuts_of,
    stages_from_cuts as stages_from_cuts,
    tensor_groups as tensor_groups,
)
from .plans.plan_words import counted as counted, plan_words as plan_words
from .plan_files import (
    PlanFile as PlanFile,
    PlanFileError as PlanFileError,
    decisions as decisions,
    is_plan_file as is_plan_file,
    plan_schema as plan_schema,
)
from .costs.plan_costs import (
    BUCKET_BYTES as BUCKET_BYTES,
    MOST_BUCKETS as MOST_BUCKETS,
    PlanCosts as PlanCosts,
    cut_buckets as cut_buckets,
    StagePlaces as StagePlaces,
    peers_of as peers_of,
    unit_begins as unit_begins,
)
from .costs.taken_collectives import TakenCollective as TakenCollective, taken_collectives as taken_collectives
from .lowering.program import Program as Program
from .schedules.schedule import (
    DeadlockError as DeadlockError,
    Schedule as Schedule,
    ScheduleError as ScheduleError,
    check_counts as check_counts,
    check_size as check_size,
)
from .schedule_replay import (
    ScheduleReplay as ScheduleReplay,
    check_slices as check_slices,
    named_schedule as named_schedule,
    read_schedule as read_schedule,
    replay_schedule as replay_schedule,
)
from .schedules.text import (
    from_text as from_text,
    from_torch_csv as from_torch_csv,
    is_schedule_text as is_schedule_text,
    to_text as to_text,
    to_torch_csv as to_torch_csv,
)
from .schedules import (
    SCHEDULES as SCHEDULES,
    ScheduleFamily as ScheduleFamily,
    build_schedule as build_schedule,
    schedule_families as schedule_families,
)
from .schedules.looped import is_group as is_group, least_group as least_group
from .schedules.placements import (
    LEAST_CHUNKS as LEAST_CHUNKS,
    PLACEMENTS as PLACEMENTS,
    USUAL_CHUNKS as USUAL_CHUNKS,
    Chains as Chains,
    Placement as Placement,
    chains_of as chains_of,
)
from .schedules.unequal import (
    unequal_schedule as unequal_schedule,
)
from .schedules.weight_versions import (
    METHOD_SCHEDULES as METHOD_SCHEDULES,
    VERSION_METHODS as VERSION_METHODS,
)
from .plan_replay import (
    ENGINES as ENGINES,
    Engine as Engine,
    build_program as build_program,
    stream_micro_batches as stream_micro_batches,
)
from .simulation import (
    Outcome as Outcome,
    UndercutBoundError as UndercutBoundError,
    simulate as simulate,
)
from .engines.timeline import Bubble as Bubble, Timeline as Timeline, Transfers as Transfers
from .results.replayed import FoundReplay as FoundReplay, Replayed as Replayed
from .results.text_tables import (
    Explained as Explained,
    TextTable as TextTable,
    in_a_line as in_a_line,
    is_numeric as is_numeric,
)
from .results.time_split import TIME_PARTS as TIME_PARTS, TimeSplit as TimeSplit
from .results.traces import chrome_trace as chrome_trace
from .results.chakra_messages import check_chakra as check_chakra
from .chakra_traces import ExecutionTraces as ExecutionTraces, execution_traces as execution_traces
from .memory.versions import (
    COPY_RULES as COPY_RULES,
    event_order as event_order,
    replicas_in_turn as replicas_in_turn,
    version_table as version_table,
)
from .workloads.network_files import LARGEST_SIZE as LARGEST_SIZE, WorkloadFileError as WorkloadFileError
from .workloads.gnmt import gnmt as gnmt
from .workloads.huggingface import read_config as read_config
from .workloads.language_models import (
    LANGUAGE_MODELS as LANGUAGE_MODELS,
    Bert as Bert,
    Gpt as Gpt,
    Llama as Llama,
    Opt as Opt,
)
from .workloads.transformer import MOST_BLOCKS as MOST_BLOCKS, Experts as Experts, Transformer as Transformer
from .workloads.measured_profile import (
    MeasuredProfile as MeasuredProfile,
    PROFILE_FORMAT as PROFILE_FORMAT,
    STEADY_SPREAD as STEADY_SPREAD,
    checked_profile as checked_profile,
    is_measured_profile as is_measured_profile,
    load_measured_profile as load_measured_profile,
)
from .workloads.stage_traces import (
    StageTimes as StageTimes,
    is_stage_trace as is_stage_trace,
    read_stage_times as read_stage_times,
)
from .workloads.sequence_slices import context_degrees as context_degrees, slice_of as slice_of
from .workloads.pipedream_profile import read_profile as read_profile
from .workloads.catalog import (
    load_workload as load_workload,
    read_any_profile as read_any_profile,
    workload_from_spec as workload_from_spec,
    workload_families as workload_families,
    workload_names as workload_names,
)
from .explanation import CAUSE_WORDS as CAUSE_WORDS, Explanation as Explanation, explain as explain
from .results.idle_causes import CAUSES as CAUSES
from .results.layer_bounds import layer_bounds as layer_bounds
from .sensitivity import Sensitivity as Sensitivity, sensitivity as sensitivity
from .settings import (
    Settings as Settings,
    adapted_plan as adapted_plan,
    change_settings as change_settings,
    known_addresses as known_addresses,
    values_of as values_of,
)
from .what_if import seconds_without as seconds_without

"""Public names, each in its module; loaded when they are first used."""

from .data import (
    DATA_SETS as DATA_SETS,
    DataSet as DataSet,
)
from .networks import (
    NETWORKS as NETWORKS,
    Network as Network,
    split_block as split_block,
)
from .optimizers import (
    LEARNING_RATE_SCHEDULES as LEARNING_RATE_SCHEDULES,
    OPTIMIZERS as OPTIMIZERS,
)
from .order import (
    training_order as training_order,
)
from .prediction import PREDICTION_RULES as PREDICTION_RULES, PredictionRule as PredictionRule
from .run import (
    REPLICATED_METHODS as REPLICATED_METHODS,
    Training as Training,
    TrainingRun as TrainingRun,
    TrainingSettings as TrainingSettings,
    check_work as check_work,
    minibatches_per_epoch as minibatches_per_epoch,
)
from .replay import train as train

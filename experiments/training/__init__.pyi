"""Public names, each in its module; loaded when they are first used."""

from .data import (
    DATA_SETS as DATA_SETS,
    DataSet as DataSet,
    digits as digits,
)
from .networks import (
    Block as Block,
    Convolution as Convolution,
    Dense as Dense,
    DensePart as DensePart,
    NETWORKS as NETWORKS,
    Network as Network,
    convolutional as convolutional,
    cross_entropy as cross_entropy,
    perceptron as perceptron,
    split_block as split_block,
)
from .optimizers import (
    Adam as Adam,
    LEARNING_RATE_SCHEDULES as LEARNING_RATE_SCHEDULES,
    LearningRateSchedule as LearningRateSchedule,
    MomentumSGD as MomentumSGD,
    OPTIMIZERS as OPTIMIZERS,
    Optimizer as Optimizer,
    OptimizerState as OptimizerState,
)
from .order import (
    TrainingOrder as TrainingOrder,
    joined as joined,
    repeated as repeated,
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

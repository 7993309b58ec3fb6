"""Public names, each in its module; loaded when they are first used."""

from .label_search import FoundPipelines as FoundPipelines, search as search
from .space import MixedPipeline as MixedPipeline, StageVariants as StageVariants, Variant as Variant

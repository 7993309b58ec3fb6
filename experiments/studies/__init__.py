"""Studies: which there are, and how they are run."""

from experiments.studies.catalogue import Study as Study

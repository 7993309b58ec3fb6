"""Joint search: every decision of a flushed pipeline searched together, by replays of a plan's neighbours."""

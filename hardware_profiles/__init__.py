"""Hardware profiles: accelerators and clusters, and how long they take."""

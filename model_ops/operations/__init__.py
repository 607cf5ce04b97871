"""Operations of a worker: one file each, with its settings in a second file."""

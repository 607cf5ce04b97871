"""Model directories (load, save, check), attention for packed rows, adapters, memory-efficient layers."""

"""AdamW with moments in 8 bits: adapts the optimizer of bitsandbytes, which importing this file needs. Its registry of
parameter groups with 32-bit moments (in_8_bits=False) is global to the process and indexed by addresses of parameters."""

from typing import Any

import bitsandbytes
from torch import Tensor


class AdamW8bit(bitsandbytes.optim.AdamW8bit):
    """bitsandbytes.optim.AdamW8bit with 32-bit moments for chosen groups."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config = super().get_config(gindex, pindex, group)
        return config if group["in_8_bits"] else {**config, "optim_bits": 32}

    def update_step(self, group: dict[str, Any], p: Tensor, gindex: int, pindex: int) -> None:
        self.state[p]["step"] = int(self.state[p]["step"])
        super().update_step(group, p, gindex, pindex)

"""Types of the compiled half; `make lint` compares them with the module itself."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def quant_types() -> list[str]: ...
def quant_block(name: str) -> tuple[int, int]: ...
def quant_dequantize(data: npt.NDArray[np.uint8], name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]: ...

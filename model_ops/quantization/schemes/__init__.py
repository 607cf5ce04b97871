"""The quantization schemes. To add one, add its file to this folder, its layer to the room, and its line here.

Messages and docs list the schemes in the order of these lines.
"""

from model_ops.quantization.schemes.fp8 import FP8 as FP8
from model_ops.quantization.schemes.fp8_block import FP8_BLOCK as FP8_BLOCK
from model_ops.quantization.schemes.mxfp4 import MXFP4 as MXFP4
from model_ops.quantization.schemes.mxfp4 import MXFP4A16 as MXFP4A16
from model_ops.quantization.schemes.nvfp4 import NVFP4 as NVFP4
from model_ops.quantization.schemes.nvfp4 import NVFP4A16 as NVFP4A16
from model_ops.quantization.schemes.w4a16 import W4A16 as W4A16
from model_ops.quantization.schemes.w4a16 import W4A16_G32 as W4A16_G32
from model_ops.quantization.schemes.w4a16 import W4A16_G64 as W4A16_G64
from model_ops.quantization.schemes.w8a8 import W8A8 as W8A8
from model_ops.quantization.schemes.w8a16 import W8A16 as W8A16
from model_ops.quantization.schemes.w8a16 import W8A16_CHANNEL as W8A16_CHANNEL

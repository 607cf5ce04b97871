"""The quantization schemes. To add one, add its file to this folder, its layer to the room, and its line here.

Messages and docs list the schemes in the order of these lines.
"""

from model_ops.quantization.schemes.w8a8 import W8A8 as W8A8

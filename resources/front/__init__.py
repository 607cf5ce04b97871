"""An HTTP pass-through in front of inference servers: who answers a request can be changed without losing one."""

"""The HTTP front between clients and inference servers, and the capture of what passes it. The front (front.py,
pass_through.py, routes.py) passes requests on unchanged, keeps a session at one release and changes servers without losing a
request. The capture layer (capture.py) writes each exchange to a journal on the local disk; the shipper, a process of its
own, turns the journal into log objects that reading/ reads. litellm_callback.py captures a LiteLLM proxy that runs already.
Which server answers is decided in serving/."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.gateway.capture import Capture, CaptureSettings, feedback_record, require_another_server, run_capture
    from resources.gateway.front import Front, FrontError, Handler, own_host
    from resources.gateway.keys import read_rules, read_sampling, server_sampling
    from resources.gateway.record import envelope
    from resources.gateway.routes import Backend, Naming, Route

__getattr__, __dir__, __all__ = door(__name__, __file__)

"""Keys and signatures. keys.py reads the private key that signs and the public keys that a machine trusts; envelope.py writes
DSSE envelopes, model_signature.py OpenSSF model signatures over files by path and digest; release_signature.py signs all
files of a release and checks them. It decides nothing about approval: endpoints/ does. A machine without keys works
unsigned.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.signing.envelope import EnvelopeError, opened, sealed
    from resources.signing.keys import (
        SIGNING_KEY,
        TRUSTED_KEYS,
        KeyProblemError,
        SigningKey,
        TrustedKey,
        TrustedKeys,
        signing_key,
        trusted_keys,
    )
    from resources.signing.model_signature import SignatureRefusedError, lay_out
    from resources.signing.release_signature import PROVENANCE, check_signature, is_signed, release_files, sign_release

__getattr__, __dir__, __all__ = door(__name__, __file__)

"""Keys and signatures. keys.py reads the private key that signs and the public keys that a machine trusts; release_signature.py
writes DSSE envelopes and OpenSSF model signatures over files by path and digest, signs all files of a release and checks them.
It decides nothing about approval: endpoints/ does. A machine without keys works unsigned."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
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
    from resources.signing.release_signature import (
        PROVENANCE,
        EnvelopeError,
        SignatureRefusedError,
        check_signature,
        is_signed,
        lay_out,
        open_envelope,
        release_files,
        seal_envelope,
        sign_release,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)

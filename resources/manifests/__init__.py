"""The manifest: the JSON file that makes an artefact exist, with its operation, settings, inputs and the digest of each file;
erased.py is the record beside it of rows that were erased since. Start with manifest.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.manifests import erased
    from resources.manifests.erased import (
        APPROVAL_PAGE,
        BESIDE,
        ELSEWHERE,
        SAMPLED,
        SIGNATURE,
        SIGNED_PROVENANCE,
        TAINTED,
        WITH_TEXT,
        File,
        erased_in,
        note_erased,
    )
    from resources.manifests.manifest import (
        CARD,
        SCRATCH,
        Code,
        Input,
        Kind,
        Manifest,
        ManifestError,
        artefact_version,
        counted_as,
        describe_files,
        external_input,
        file_problems,
        files_digest,
        files_under,
        is_record,
        read_manifest,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)

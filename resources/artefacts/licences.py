"""Licences and front matter of what artefacts are made from.

    licences = licences_of(manifests)          # {name of an external input: its licence}
    front_matter(directory)                    # the metadata of a README.md in Hugging Face's form; {} if it has none
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from resources.artefacts.manifest import Manifest


def licences_of(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The licence of each external input: of a model directory as its README.md states it, of seeds as the recipe does."""
    found: dict[str, str] = {}
    for manifest in manifests:
        about = manifest.config.get("about")
        stated = about.get("licences") if isinstance(about, dict) else None
        found |= {name: licence for name, licence in (stated or {}).items() if licence}
        for item in manifest.inputs:
            if item.kind == "external" and item.name not in found:
                licence = front_matter(Path(item.name)).get("license")
                if isinstance(licence, str) and licence:
                    found[item.name] = licence
    return found


def front_matter(directory: Path) -> dict[str, Any]:
    """The YAML between the first two lines `---` of README.md; {} if there is none that can be read."""
    try:
        parts = (directory / "README.md").read_text(encoding="utf-8").split("---", 2)
        stated = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return stated if isinstance(stated, dict) else {}

"""The chart in `configs/helm` without Helm: it uses names of values and switches only, which a dozen lines fill in.

`python -m tests.support.chart` writes the manifests in `configs/kubernetes` anew; Helm makes the same, as a test shows.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["CHART", "MANIFESTS", "RELEASE", "SWITCHED_ON", "rendered"]

CHART: Final = Path(__file__).parents[2] / "configs" / "helm"
MANIFESTS: Final = CHART.parent / "kubernetes"
RELEASE: Final = "fanout"
"""Name of the release that the manifests are."""
SWITCHED_ON: Final = {"monitoring": True}
"""The values of the manifests that are not those of the chart: a manifest is left out by not applying it."""


def rendered(template: str, **changed: Any) -> str:
    """Return a template of the chart as its manifest, some values changed; empty where a switch turns it off."""
    values = {**yaml.safe_load((CHART / "values.yaml").read_text()), **SWITCHED_ON, **changed}

    def fill(text: str) -> str:
        return re.sub(
            r"\{\{ \.(?:Values\.(\w+)|Release\.Name) \}\}", lambda m: str(values[m[1]]) if m[1] else RELEASE, text
        )

    text = (CHART / "templates" / template).read_text()
    if switch := re.fullmatch(r"\{\{- if \.Values\.(\w+) \}\}\n(.*)\{\{- end \}\}\n", text, re.DOTALL):
        text = switch[2] if values[switch[1]] else ""
    config = textwrap.indent(fill(values["config"]).strip(), "    ")
    return fill(text.replace("    {{- tpl .Values.config . | trim | nindent 4 }}", config))


if __name__ == "__main__":
    for path in MANIFESTS.iterdir():
        path.write_text(rendered(path.name))

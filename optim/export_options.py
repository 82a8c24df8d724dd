"""What a plan does not know and a deployment needs: given by whoever exports, else a placeholder that is listed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxsim._checks import invalid

PLACEHOLDER = "REPLACE_WITH_"
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_LABEL = 63
_LONGEST_SUFFIX = len("-pool-0")
_TEXT = re.compile(r"\S+")


@dataclass(frozen=True)
class ExportOptions:
    """Given by whoever exports. None is a placeholder, or left to the engine where that is said.

    Attributes:
        name: what the names of all objects begin with: a DNS-1123 label that begins with a letter, as a Service's must.
        model: of the engines, a Hugging Face name or a path; None takes the catalogue's of a MODEL@GPU profile.
        image: of the containers that run `vllm serve`.
        dynamo_image: of Dynamo's frontend and workers.
        gpu_memory_utilization: share of the memory that an engine may use.
        node_labels: for each GPU, as the plan names it, the label of its nodes, KEY=VALUE.
        hf_token_secret: Secret whose key HF_TOKEN opens gated models; None sets no token.
        prometheus: address of the server that KEDA asks.
        command: what was typed, for the headers.
    """

    name: str = "fleet"
    model: str | None = None
    image: str | None = None
    dynamo_image: str | None = None
    gpu_memory_utilization: float | None = None
    node_labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    hf_token_secret: str | None = None
    prometheus: str | None = None
    command: str = "optim.export.export_files"

    def __post_init__(self) -> None:
        most = MAX_LABEL - _LONGEST_SUFFIX
        if not _LABEL.fullmatch(self.name) or len(self.name) > most:
            allowed = f"a DNS-1123 label that begins with a letter, at most {most} characters"
            raise invalid("name", self.name, allowed, "lower-case letters, digits and '-' between them")
        for what in ("model", "image", "dynamo_image", "hf_token_secret", "prometheus"):
            value = getattr(self, what)
            if value is not None and not _TEXT.fullmatch(value):
                raise invalid(what, value, "a word without blanks")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise invalid("gpu_memory_utilization", share, "in (0, 1]", "90 % is 0.9")


def placeholder(what: str) -> str:
    """A word that no cluster and no engine accepts, so that nothing runs before it is replaced."""
    return PLACEHOLDER + re.sub(r"[^A-Za-z0-9]+", "_", what).strip("_").upper()


def node_label(text: str) -> tuple[str, tuple[str, str]]:
    """GPU=KEY=VALUE as the GPU and its label.

    Raises:
        ValueError: another form.
    """
    gpu, _, label = text.partition("=")
    key, _, value = label.partition("=")
    if not (gpu and key and re.fullmatch(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", value)):
        hint = "such as h100-sxm=nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"
        raise invalid("node label", text, "GPU=KEY=VALUE with a label of Kubernetes", hint)
    return gpu, (key, value)

"""What the tables of a plan file are made of: domains of numbers, and a table that knows its keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Tokens = Annotated[float, Field(ge=2, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class Table(BaseModel):
    """A table whose keys and types are exactly these."""

    model_config = ConfigDict(extra="forbid", strict=True)

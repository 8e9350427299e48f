"""What every section of a file is made of: closed, frozen models, names and texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

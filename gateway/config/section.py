"""What every section of a file is made of: closed, frozen models, names and texts."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


def no_truth_value(value: Any) -> Any:
    """For numbers with conditions of their own: Python counts `True` as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "a truth value is no number")
    return value


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are frozen, `true` is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts `True` as 1, and pydantic with it.
        if isinstance(value, bool) and info.field_name is not None:
            wanted = cls.model_fields[info.field_name].annotation
            kinds = {wanted, *get_args(wanted)}
            if bool not in kinds and kinds & {int, float}:
                raise PydanticCustomError("int_type" if int in kinds else "float_type", "a truth value is no number")
        return value

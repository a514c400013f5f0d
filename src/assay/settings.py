"""Settings of services: environment variables under a prefix, of which none may be unknown."""

from __future__ import annotations

import difflib
import os
from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

#: By owner, the weight of a share: a finite number above 0.
Weights: TypeAlias = dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class ServiceSettings(BaseSettings):
    """Base of a service's settings. Subclasses name their prefix in `model_config`."""

    @model_validator(mode="after")
    def _known_variables_only(self) -> Self:
        """A misspelt variable would otherwise be ignored, and nobody would notice."""
        prefix = str(type(self).model_config.get("env_prefix", ""))
        known = {prefix + name.upper() for name in type(self).model_fields}
        for variable in sorted(os.environ):
            if variable.upper().startswith(prefix) and variable.upper() not in known:
                close = difflib.get_close_matches(variable.upper(), known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ValueError(f"{variable} is not a setting of this service{hint}")
        return self

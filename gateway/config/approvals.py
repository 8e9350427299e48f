"""Approvals in the configuration: how long is waited, who decides, how sure a model has to be.

Knows shapes, defaults and units.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.limits import Role
from gateway.config.section import Name, Section

# What happens to completed effects when a later step fails.
OnFailure = Literal["keep", "compensate", "ask"]


class ApprovalsConfig(Section):
    """Calls that wait for a human."""

    wait_s: float = Field(default=25, ge=0, le=3600, description="Seconds a request waits for the decision.")
    expire_s: float = Field(
        default=86_400, gt=0, le=365 * 86_400, description="Seconds until it can't be given any more."
    )
    approvers: tuple[Role, ...] = Field(default=("admin",), description="Roles that may approve and reject.")
    self_approve: bool = Field(default=False, description="Whether whoever asked may approve it too.")
    double_roles: tuple[Role, ...] = Field(
        default=("admin",), description="Roles that see the codes of deletions, and may approve them."
    )
    confidence: Literal["none", "logprobs", "argument"] = Field(
        default="none", description="Where a model's confidence in a call is read."
    )
    confidence_threshold: float = Field(default=0.8, ge=0, le=1)
    webhooks: tuple[Name, ...] = Field(default=(), description="Who is told of what waits, by name.")

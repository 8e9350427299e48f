"""Who may see, approve and reject what.

Pure. Knows roles and the asker. Does not know keys or HTTP.
"""

from __future__ import annotations

from gateway.config.approvals import ApprovalsConfig
from gateway.errors import NotAllowed
from gateway.security.principal import Principal
from gateway.store.approval_records import ApprovalRow

# The caller where no key is asked for. Whoever reaches the port is nobody in particular, and tools may reach it too.
_NOBODY = "local"


def sees_all(principal: Principal, config: ApprovalsConfig) -> bool:
    """Whether a caller is shown everybody's approvals."""
    return principal.key_id != _NOBODY and not principal.roles.isdisjoint({*config.approvers, "admin"})


def sees_code(principal: Principal, row: ApprovalRow, config: ApprovalsConfig) -> bool:
    """Whether a caller is shown the code: approvers of deletions, and not whoever asked, where that one may not approve."""
    if principal.key_id == _NOBODY or principal.roles.isdisjoint(config.double_roles):
        return False
    return sees_all(principal, config) and (config.self_approve or not is_asker(principal, row))


def refuse_decision(principal: Principal, row: ApprovalRow, config: ApprovalsConfig) -> None:
    """Let a caller decide who may.

    Raises:
        NotAllowed: with what it takes.
    """
    if principal.key_id == _NOBODY:
        raise NotAllowed(
            "Without a key nobody knows who approves: use `hermes-gateway approvals` on the gateway's own machine, or the "
            "administrator's key (GATEWAY_ADMIN_KEY)."
        )
    asks = is_asker(principal, row)
    if asks and not config.self_approve:
        raise NotAllowed("Whoever asked may not decide it (`approvals.self_approve`).")
    if principal.roles.isdisjoint(config.approvers) and not asks:
        raise NotAllowed(f"This needs a key with {_roles(config.approvers)} (`approvals.approvers`).")
    if row.code is not None and principal.roles.isdisjoint(config.double_roles):
        raise NotAllowed(
            f"To decide a deletion needs a key with {_roles(config.double_roles)} (`approvals.double_roles`)."
        )


def is_asker(principal: Principal, row: ApprovalRow) -> bool:
    """Whether a caller is who asked: the same owner, or the same key where it names no other end user."""
    return principal.owner == row.owner or (principal.key_id == row.key and principal.user is None)


def _roles(roles: tuple[str, ...]) -> str:
    return (
        "the role " + " or ".join(f"`{role}`" for role in roles)
        if roles
        else "a role, and the configuration names none"
    )

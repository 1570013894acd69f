"""Where two runs differ: for a resume in anything, for a fork in what was in force before it."""

from typing import Any

from probmargin.methods.method import Method

_SCHEDULE = frozenset(
    {"method", "preset", "epochs", "lr", "lr_milestones", "lr_decay", "lr_schedule", "lr_per", "burn_in_epochs"}
)
"""Names, and settings that are compared by what they amount to in each epoch."""


def differences(found: dict[str, Any], wanted: dict[str, Any], path: str = "") -> list[str]:
    """The settings in which two runs differ, each with both values.

    >>> differences({"seed": 1, "recipe": {"lr": 0.1}}, {"seed": 1, "recipe": {"lr": 0.2}})
    ['lr is 0.1 there and 0.2 here']
    """
    rows = []
    for key, value in wanted.items():
        where, other = f"{path}{key}", found.get(key)
        if key in ("id", "recipe_hash") or value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            rows += differences(other, value, f"{where}.")
        else:
            rows.append(f"{where.removeprefix('recipe.')} is {other!r} there and {value!r} here")
    return rows


def moved(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """What a run says of itself, with its data at the place it has here, if that is the same by its content.

    >>> there, here = ({"data": f"npz:{place}", "data_fingerprint": "f"} for place in ("a.npz", "b/a.npz"))
    >>> moved(there, here)["data"], moved({**there, "data_fingerprint": "g"}, here)["data"]
    ('npz:b/a.npz', 'npz:a.npz')
    """
    is_same = found.get("data_fingerprint") == wanted["data_fingerprint"]
    are_places = all(":" in str(side.get("data")) for side in (found, wanted))
    return {**found, "data": wanted["data"]} if is_same and are_places else found


def _in_force(method: Method, epoch: int) -> dict[str, Any]:
    """What decides an epoch's steps, but for the learning rate."""
    plain = {key: value for key, value in method.at(epoch).plain().items() if key not in _SCHEDULE}
    if plain["awp"] is not None:
        plain["awp"] = {"gamma": plain["awp"]["gamma"]}
    return plain | {"fresh_momentum": method.fresh_momentum_at(epoch)}


def recipe_differences(parent: Method, child: Method, epochs: int, num_batches: int) -> list[str]:
    """Where two recipes differ in the steps before the state after `epochs` epochs; the first epoch that does."""
    plans = [[epoch for epoch in method.epoch_plan() if epoch < epochs] for method in (parent, child)]
    if plans[0] != plans[1]:
        only = sorted(set(plans[0]) ^ set(plans[1]))
        return [f"epoch {only[0]} is trained {'there' if only[0] in plans[0] else 'here'} alone"]
    for epoch in plans[0]:
        found = differences(_in_force(parent, epoch), _in_force(child, epoch))
        for batch in range(num_batches):
            rates = [method.lr_at(epoch, batch, num_batches) for method in (parent, child)]
            if rates[0] != rates[1]:
                found.append(f"lr is {rates[0]!r} there and {rates[1]!r} here")
                break
        if found:
            return [f"in epoch {epoch} {row}" for row in found]
    return []

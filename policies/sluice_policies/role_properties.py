"""Two properties of each role: it can do its work, and it can do nothing else."""

from collections.abc import Iterator

from sluice_policies.access_matrix import (
    ACTIONS,
    BUCKET_READS,
    CREATE_ONLY,
    LISTING,
    MATRIX,
    Verb,
    rights_of,
)
from sluice_policies.bucket_policy import COPY_SOURCE, CREATES, IF_NONE_MATCH
from sluice_policies.catalogue import (
    bucket_actions,
    inspecting_actions,
    key_actions,
    object_actions,
    reconfiguring_actions,
)
from sluice_policies.identity_policies import listed_prefixes
from sluice_policies.model import Condition
from sluice_policies.policy_set import PolicySet
from sluice_policies.properties import (
    Property,
    PropertyCase,
    Sense,
    absent,
    encryption_ways,
    equals,
    transport_conditions,
)
from sluice_policies.settings import RoleName, Settings, Target, bucket_arn, objects_arns
from sluice_policies.versitygw import known_actions
from sluice_protocol import keys


def _bucket_rights(name: RoleName) -> tuple[str, ...]:
    rights = MATRIX[name]
    configuring = reconfiguring_actions() if rights.configure else ()
    return (*(inspecting_actions() if rights.inspect else BUCKET_READS), *configuring)


def _key_rights(policies: PolicySet, name: RoleName) -> tuple[str, ...]:
    if policies.target is not Target.AWS or not policies.settings.encryption.kms_key:
        return ()
    writes = Verb.WRITE in MATRIX[name].prefixes
    return ("kms:Decrypt", *(("kms:GenerateDataKey",) if writes else ()))


def _listed(settings: Settings, name: RoleName) -> Condition:
    return Condition(
        operator="StringLikeIfExists",
        key="s3:prefix",
        values=listed_prefixes(settings, MATRIX[name]),
    )


def _nothing_else(policies: PolicySet, name: RoleName) -> Iterator[PropertyCase]:
    settings = policies.settings
    groups: dict[tuple[str, ...], list[str]] = {}
    for action in object_actions():
        groups.setdefault(rights_of(name, action), []).append(action)
    for prefixes, actions in groups.items():
        where = objects_arns(settings, prefixes) or (f"{bucket_arn(settings)}/*",)
        yield PropertyCase(actions=tuple(actions), where=where, outside=bool(prefixes), role=name)
    yield PropertyCase(actions=LISTING, conditions=(_listed(settings, name),), role=name)
    mine = {*LISTING, *_bucket_rights(name)}
    others = tuple(action for action in bucket_actions() if action not in mine)
    yield PropertyCase(actions=others, role=name)
    mine_too = _key_rights(policies, name)
    yield PropertyCase(actions=tuple(a for a in key_actions() if a not in mine_too), role=name)


def _put_conditions(settings: Settings, prefix: str) -> tuple[Condition, ...]:
    once = prefix in CREATE_ONLY
    blob = prefix == keys.RAW_BLOBS
    single = (absent(COPY_SOURCE), equals(CREATES, "true"))
    conditional = once or (blob and settings.raw_blobs.require_if_none_match)
    return (
        *(single if once or blob else ()),
        *((equals(IF_NONE_MATCH, "*"),) if conditional else ()),
    )


def _work(policies: PolicySet, name: RoleName) -> Iterator[PropertyCase]:
    settings = policies.settings
    given = transport_conditions(settings, name)
    for verb, prefixes in MATRIX[name].prefixes.items():
        put = verb is Verb.WRITE
        groups: dict[tuple[Condition, ...], list[str]] = {}
        for prefix in prefixes:
            more = _put_conditions(settings, prefix) if put else ()
            groups.setdefault(more, []).append(prefix)
        for more, places in groups.items():
            yield PropertyCase(
                actions=ACTIONS[verb],
                where=objects_arns(settings, tuple(places)),
                conditions=(*given, *more),
                ways=encryption_ways(settings) if put else (),
                role=name,
            )
    yield PropertyCase(actions=LISTING, conditions=(*given, _listed(settings, name)), role=name)
    rights = _bucket_rights(name)
    known = known_actions(rights) if policies.target is Target.VERSITYGW else rights
    yield PropertyCase(actions=known, conditions=given, role=name)
    yield PropertyCase(actions=_key_rights(policies, name), conditions=(), role=name)


def role_properties(policies: PolicySet) -> Iterator[Property]:
    """Yield, for each role, that it can do nothing else and that it can do its work."""
    for name in RoleName:
        purpose = MATRIX[name].purpose
        yield Property(
            name=f"{name.value}-nothing-else",
            description=f"the {name.value} role has no right beyond its prefixes and verbs",
            sense=Sense.ONLY_IF,
            cases=tuple(_nothing_else(policies, name)),
        )
        yield Property(
            name=f"{name.value}-can-work",
            description=f"the {name.value} role can do its work: it {purpose}",
            sense=Sense.CAN,
            cases=tuple(_work(policies, name)),
        )

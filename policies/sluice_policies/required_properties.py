"""The properties that the protocol requires of a bucket, derived from settings.

Each role has two: it can do its work, and it can do nothing else.
"""

from collections.abc import Iterator

from sluice_policies.access_matrix import (
    ACTIONS,
    BASIS_OF_DELETION,
    BUCKET_READS,
    CREATE_ONLY,
    DELETING,
    DELETION_FILES,
    EVIDENCE,
    GUARDED_WRITES,
    LISTING,
    LOCKS,
    MATRIX,
    NEVER_DELETED,
    RECORDED_DECISIONS,
    REENCRYPTING,
    REWRITING,
    Verb,
    rights_of,
    writers,
)
from sluice_policies.bucket_policy import (
    COPY_SOURCE,
    CREATES,
    ENDPOINT,
    IF_NONE_MATCH,
    TLS,
)
from sluice_policies.catalogue import (
    bucket_actions,
    inspecting_actions,
    key_actions,
    object_actions,
    reconfiguring_actions,
)
from sluice_policies.configuration import RULES
from sluice_policies.model import Condition
from sluice_policies.policy_set import PolicySet, expressible, known_actions, listed_prefixes
from sluice_policies.properties import (
    CALLER,
    Property,
    PropertyCase,
    Sense,
    absent,
    absent_or,
    combined,
    encryption_ways,
    equals,
    never,
    only_if,
    own_account_ways,
    transport_conditions,
)
from sluice_policies.settings import (
    RoleName,
    Settings,
    Target,
    bucket_arn,
    objects_arn,
    objects_arns,
)
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


PUT = ("s3:PutObject",)


def _creation(settings: Settings) -> Iterator[Property]:
    yield only_if(
        "accepted-created-once",
        "under accepted/ (and quarantine/, decisions/, deletes/, promotions/, authority/, "
        "retention/, expired/) an object is written only with If-None-Match: *",
        PUT,
        objects_arns(settings, RECORDED_DECISIONS),
        equals(IF_NONE_MATCH, "*"),
    )
    if settings.raw_blobs.require_if_none_match:
        yield only_if(
            "blobs-created-once",
            "under raw-blobs/ an object is written only with If-None-Match: *",
            PUT,
            objects_arns(settings, (keys.RAW_BLOBS,)),
            equals(IF_NONE_MATCH, "*"),
        )
    yield only_if(
        "journals-created-once",
        "under gateways/ an object is written only with If-None-Match: *",
        PUT,
        objects_arns(settings, (keys.GATEWAYS,)),
        equals(IF_NONE_MATCH, "*"),
    )
    whole = objects_arns(settings, (*CREATE_ONLY, keys.RAW_BLOBS))
    yield only_if(
        "no-copy-into-accepted-or-blobs",
        "nothing is copied into accepted/, raw-blobs/ or another prefix of records that are "
        "written once",
        PUT,
        whole,
        absent(COPY_SOURCE),
    )
    yield only_if(
        "no-multipart-into-accepted-or-blobs",
        "no multipart upload writes under accepted/, raw-blobs/ or another prefix of records that "
        "are written once",
        PUT,
        whole,
        *absent_or(CREATES, "true"),
    )


def _deletion(policies: PolicySet) -> Iterator[Property]:
    settings = policies.settings
    blobs = objects_arns(settings, (keys.RAW_BLOBS,))
    references = objects_arns(settings, (keys.ACCEPTED_BY_BLOB,))
    evidence = objects_arns(settings, EVIDENCE)
    yield never(
        "accepted-never-deleted",
        "no principal deletes an object or version under accepted/ (or another decision or "
        "certificate), not by replication either",
        DELETING,
        objects_arns(settings, NEVER_DELETED),
    )
    rewriting = tuple(a for a in (*REWRITING, *REENCRYPTING) if a not in DELETING)
    yield never(
        "nothing-rewritten-in-place",
        "no principal replaces, re-encrypts or exposes by ACL an object under accepted/ or "
        "raw-blobs/",
        rewriting,
        (*evidence, *blobs),
    )
    yield only_if(
        "blob-versions-deleted-by-gc-alone",
        "only the gc role deletes a version under raw-blobs/",
        ("s3:DeleteObjectVersion",),
        blobs,
        equals(CALLER, policies.principal_of(RoleName.GC)),
    )
    yield only_if(
        "references-deleted-by-reconciler-alone",
        "only the reconciler role deletes a version under accepted-by-blob/",
        ("s3:DeleteObjectVersion",),
        references,
        equals(CALLER, policies.principal_of(RoleName.RECONCILER)),
    )
    yield never(
        "blobs-never-hidden",
        "no principal, including the gc role, puts a delete marker over a blob or a reference to "
        "one",
        ("s3:DeleteObject", "s3:ReplicateDelete"),
        (*blobs, *references),
    )
    yield only_if(
        "journals-deleted-by-reconciler-alone",
        "only the reconciler role deletes an object or version under gateways/, not by "
        "replication either",
        DELETING,
        objects_arns(settings, (keys.GATEWAYS,)),
        equals(CALLER, policies.principal_of(RoleName.RECONCILER)),
    )
    yield never(
        "locks-never-touched-by-hand",
        "no principal sets, extends or bypasses a lock on an object",
        LOCKS,
        (objects_arn(settings),),
    )


def _separation(policies: PolicySet) -> Property:
    """Return the property that separates who deletes a blob from who certifies that it may."""
    settings = policies.settings
    deleter = policies.principal_of(RoleName.GC)
    return only_if(
        "deleter-certifies-nothing",
        "the gc role, which alone deletes versions of blobs, writes no manifest, reference, "
        "certificate or evidence",
        PUT,
        objects_arns(settings, BASIS_OF_DELETION),
        Condition(operator="StringNotEquals", key=CALLER, values=(deleter,)),
    )


def _everywhere(settings: Settings) -> Iterator[Property]:
    deployment = (objects_arn(settings),)
    ways = encryption_ways(settings)
    yield Property(
        name="encrypted-as-set",
        description="an object is written with the bucket's default encryption, or names the same "
        "encryption and key; nothing is re-encrypted or replicated into the deployment",
        sense=Sense.ONLY_IF,
        cases=(
            PropertyCase(actions=PUT, where=deployment, conditions=(), ways=ways),
            PropertyCase(actions=REENCRYPTING, where=deployment),
        ),
    )
    whole = (f"{bucket_arn(settings)}/*",)
    if settings.network.require_tls:
        yield _tls_only(whole)
    if settings.network.vpc_endpoint:
        yield _through_endpoint(settings, whole)


def _tls_only(where: tuple[str, ...]) -> Property:
    condition = equals(TLS, "true")
    cases = (
        PropertyCase(actions=object_actions(), where=where, conditions=(condition,)),
        PropertyCase(actions=bucket_actions(), conditions=(condition,)),
    )
    description = "no request is allowed without TLS"
    return Property(name="tls-only", description=description, sense=Sense.ONLY_IF, cases=cases)


def _through_endpoint(settings: Settings, whole: tuple[str, ...]) -> Property:
    condition = equals(ENDPOINT, settings.network.vpc_endpoint)
    cases = tuple(
        PropertyCase(actions=actions, where=where, conditions=(condition,), role=name)
        for name in RoleName
        if name is not RoleName.DEPLOYER
        for actions, where in ((object_actions(), whole), (bucket_actions(), ()))
    )
    description = "no role except the deployer is allowed a request from outside the VPC endpoint"
    return Property(name="endpoint-only", description=description, sense=Sense.ONLY_IF, cases=cases)


def _writing(policies: PolicySet) -> Iterator[Property]:
    settings = policies.settings
    cases = tuple(
        PropertyCase(
            actions=PUT,
            where=objects_arns(settings, (prefix,)),
            conditions=(
                equals(CALLER, *(policies.principal_of(name) for name in writers(prefix))),
            ),
        )
        for prefix in GUARDED_WRITES
    )
    yield Property(
        name="written-by-writers-alone",
        description="decisions, evidence, blobs and queues are written only by the roles that "
        "own them, even if another caller is an administrator",
        sense=Sense.ONLY_IF,
        cases=cases,
    )
    yield only_if(
        "reconfigured-by-deployer-alone",
        "only the deployer changes policy, lifecycle, versioning, replication, lock and other "
        "configuration",
        reconfiguring_actions(),
        (),
        equals(CALLER, policies.principal_of(RoleName.DEPLOYER)),
    )


def _left_alone(settings: Settings) -> Property:
    """Return the property that the bucket policy denies nothing beyond the requirements."""
    given = transport_conditions(settings)
    own = own_account_ways(settings)
    free = (keys.QUEUE, keys.WORK_LISTS, *DELETION_FILES)
    guarded = objects_arns(settings, GUARDED_WRITES)
    barred = {*LOCKS, *REENCRYPTING}
    unlocked = tuple(action for action in object_actions() if action not in barred)
    taken = {*PUT, *REWRITING, *DELETING}
    unguarded = tuple(action for action in unlocked if action not in taken)
    deletable = tuple(action for action in unlocked if action not in PUT)
    reading = tuple(a for a in bucket_actions() if a not in reconfiguring_actions())
    written = combined(encryption_ways(settings), own)
    deployment = (objects_arn(settings),)
    return Property(
        name="rest-left-alone",
        description="the bucket policy denies no request of the account that no requirement "
        "forbids",
        sense=Sense.CAN,
        cases=(
            PropertyCase(
                actions=unlocked, where=guarded, outside=True, conditions=given, ways=written
            ),
            PropertyCase(actions=unguarded, where=guarded, conditions=given, ways=own),
            PropertyCase(
                actions=deletable, where=objects_arns(settings, free), conditions=given, ways=own
            ),
            PropertyCase(
                actions=tuple(action for action in deletable if action not in DELETING),
                where=objects_arns(settings, (keys.GATEWAYS,)),
                conditions=given,
                ways=own,
            ),
            PropertyCase(actions=reading, conditions=given, ways=own),
            PropertyCase(
                actions=object_actions(),
                where=deployment,
                outside=True,
                conditions=given,
                ways=own,
            ),
        ),
    )


def _expressible(item: Property) -> bool:
    conditions = [c for case in item.cases for c in (*(case.conditions or ()), *sum(case.ways, ()))]
    return all(c.key == CALLER or expressible(c) for c in conditions)


def _of_everyone(policies: PolicySet) -> tuple[Property, ...]:
    settings = policies.settings
    return (
        *_creation(settings),
        *_deletion(policies),
        _separation(policies),
        *_everywhere(settings),
        *_writing(policies),
    )


def required_properties(policies: PolicySet) -> tuple[Property, ...]:
    """Return every property that the documents of a target must have, in the order of reports."""
    everyone = _of_everyone(policies)
    if policies.target is Target.VERSITYGW:
        kept = tuple(item for item in everyone if _expressible(item))
        return (*kept, _strangers(policies), *role_properties(policies))
    return (
        *everyone,
        *_other_accounts(policies.settings),
        _left_alone(policies.settings),
        *role_properties(policies),
    )


def lifecycle_properties() -> tuple[Property, ...]:
    """Return what is required of a lifecycle; it is not subject to requests, so without cases."""
    return tuple(
        Property(name=name, description=description, sense=Sense.ONLY_IF, cases=())
        for name, description in RULES.items()
    )


def _other_accounts(settings: Settings) -> Iterator[Property]:
    """Yield that other accounts are denied whatever is granted, and that nothing is granted."""
    ways = own_account_ways(settings)
    cases = (
        PropertyCase(
            actions=object_actions(), where=(f"{bucket_arn(settings)}/*",), conditions=(), ways=ways
        ),
        PropertyCase(actions=bucket_actions(), conditions=(), ways=ways),
    )
    yield Property(
        name="strangers-do-nothing",
        description="no principal of another account, anonymous caller, or AWS service acting for "
        "another account is allowed a request to the bucket, whatever a statement grants",
        sense=Sense.ONLY_IF,
        cases=cases,
    )
    yield Property(
        name="strangers-granted-nothing",
        description="no statement of the bucket policy grants anything to such a caller",
        sense=Sense.GRANTED_ONLY_IF,
        cases=cases,
    )


def _strangers(policies: PolicySet) -> Property:
    """Return the property that replaces AWS's identity policies, which versitygw does not have."""
    ours = equals(CALLER, *(policies.principal_of(name) for name in RoleName))
    cases = (
        PropertyCase(
            actions=object_actions(),
            where=(f"{bucket_arn(policies.settings)}/*",),
            conditions=(ours,),
        ),
        PropertyCase(actions=bucket_actions(), conditions=(ours,)),
    )
    description = "a user without one of the roles is allowed no request to the bucket"
    return Property(
        name="strangers-do-nothing", description=description, sense=Sense.ONLY_IF, cases=cases
    )


def inexpressible_properties(policies: PolicySet) -> tuple[Property, ...]:
    """Return the required properties for which versitygw has no condition keys."""
    return tuple(item for item in _of_everyone(policies) if not _expressible(item))

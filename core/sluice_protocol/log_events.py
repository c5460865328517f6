"""The registry of WARN and ERROR log events: what each means and what an operator does about it.

`docs/events.md` is generated from this table (`make docs`). A test compares the table with every
`log.warning`, `log.error` and `log.exception` call of the product.
"""

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["WARN", "ERROR"]
"""WARN: sluice recovered or will retry. ERROR: an operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One log event.

    Attributes:
        name: The event name, snake_case; the field `event` of the log line.
        level: WARN or ERROR.
        component: The component that logs it.
        meaning: What happened.
        action: What an operator does.
    """

    name: str
    level: Level
    component: str
    meaning: str
    action: str


LOG_EVENTS: Final = (
    LogEvent(
        name="agent_refused",
        level="ERROR",
        component="agent",
        meaning=(
            "A gateway rejects the agent's key, clock or principal (401 or 403). Batches stay "
            "in the spool."
        ),
        action=(
            "Check the agent's key, the machine's clock and the principals file of the gateways."
        ),
    ),
    LogEvent(
        name="batch_parked",
        level="ERROR",
        component="agent",
        meaning=(
            "A gateway rejected a batch permanently (`status`, `reason`). The batch is parked; "
            "later batches continue."
        ),
        action="Inspect it with `sluice agent parked list`, then retry or drop it.",
    ),
    LogEvent(
        name="binary_file_skipped",
        level="WARN",
        component="agent",
        meaning="A followed file contains NUL bytes and is not read.",
        action="Exclude the file from the agent's patterns, or ignore the event.",
    ),
    LogEvent(
        name="file_missing",
        level="WARN",
        component="agent",
        meaning="A followed file does not exist any more, and its end was not read.",
        action="Check the log rotation: keep rotated files until the agent has read them.",
    ),
    LogEvent(
        name="file_rewritten",
        level="WARN",
        component="agent",
        meaning=(
            "A followed file is shorter than the part already read. It is read again from its "
            "start."
        ),
        action="None, if the application truncates its log. Otherwise find what rewrites the file.",
    ),
    LogEvent(
        name="file_unreadable",
        level="WARN",
        component="agent",
        meaning="A followed file cannot be opened or read.",
        action="Give the agent read permission.",
    ),
    LogEvent(
        name="host_metrics_unavailable",
        level="WARN",
        component="agent",
        meaning=(
            "The system does not provide a source of host metrics. The other sources are reported."
        ),
        action="None.",
    ),
    LogEvent(
        name="parked_file_corrupt",
        level="ERROR",
        component="agent",
        meaning=(
            "A parked batch does not contain the bytes that were written. It stays in `parked/`."
        ),
        action="Check the disk. Remove it with `sluice agent parked drop`.",
    ),
    LogEvent(
        name="records_dropped",
        level="ERROR",
        component="agent",
        meaning="The spool is full and `when_full` is `drop_newest`: records were lost.",
        action="Restore the connection to the gateways, or enlarge the spool.",
    ),
    LogEvent(
        name="shutdown_incomplete",
        level="WARN",
        component="agent",
        meaning="The agent exited before all batches were accepted. They stay in the spool.",
        action="Start the agent again with the same spool.",
    ),
    LogEvent(
        name="spool_file_corrupt",
        level="ERROR",
        component="agent",
        meaning=(
            "A spool file does not contain the bytes that were written. It was moved to `corrupt/`."
        ),
        action="Check the disk. Keep the file for analysis; its records are not sent.",
    ),
    LogEvent(
        name="spool_full",
        level="WARN",
        component="agent",
        meaning="The spool is full. Inputs wait until gateways accept batches.",
        action="Check that gateways are reachable, or enlarge the spool.",
    ),
    LogEvent(
        name="spool_unwritable",
        level="ERROR",
        component="agent",
        meaning="A write to the spool failed. The agent retries every second; inputs wait.",
        action="Free disk space, or restore the write permission.",
    ),
    LogEvent(
        name="upload_failed",
        level="WARN",
        component="agent",
        meaning="An upload failed. The same bytes are sent again, to any gateway.",
        action="Investigate if it repeats for minutes: check the gateways and the network.",
    ),
    LogEvent(
        name="uploads_failing",
        level="WARN",
        component="agent",
        meaning="No gateway has responded usefully for `failing_s`. Logged every 30 seconds.",
        action="Check the gateways and the network. `sluice forward --give-up-s` sets a limit.",
    ),
    LogEvent(
        name="authority_missing",
        level="ERROR",
        component="gateway",
        meaning=(
            "The record `authority/v1/settings.json` does not exist any more. The gateway is not "
            "ready."
        ),
        action="Restore the record, or mount the right directory, then check what removed it.",
    ),
    LogEvent(
        name="authority_not_read",
        level="WARN",
        component="gateway",
        meaning=(
            "The check for a mode switch failed. Uploads are refused with 503 if it fails for "
            "too long."
        ),
        action="Check the connection to the store if it repeats.",
    ),
    LogEvent(
        name="authority_switched",
        level="ERROR",
        component="gateway",
        meaning="The acceptance mode was switched. This gateway exits.",
        action="Start the gateway with the settings of the new mode.",
    ),
    LogEvent(
        name="authority_unreachable",
        level="WARN",
        component="gateway",
        meaning="A gateway with a spool started without the authority. It accepts into its spool.",
        action="Restore the connection to the store; the spool is transferred automatically.",
    ),
    LogEvent(
        name="decisions_not_read",
        level="WARN",
        component="gateway",
        meaning="Operators' decisions could not be read. The known decisions stay in effect.",
        action="Check the connection to the store if it repeats.",
    ),
    LogEvent(
        name="doctor_result_not_read",
        level="WARN",
        component="gateway",
        meaning="The doctor's result could not be read. The last known result stays in effect.",
        action="Check the connection to the store if it repeats.",
    ),
    LogEvent(
        name="gateway_stopped",
        level="ERROR",
        component="gateway",
        meaning="The gateway could not start or continue, and exited.",
        action="Correct the cause in `reason` and start it again.",
    ),
    LogEvent(
        name="high_water_mark_not_written",
        level="WARN",
        component="gateway",
        meaning="A high-water mark could not be written. It is written with a later one.",
        action="Check the connection to the store if it repeats.",
    ),
    LogEvent(
        name="high_water_mark_unreadable",
        level="WARN",
        component="gateway",
        meaning="A stored high-water mark is damaged. It is replaced.",
        action="None. Investigate the store if it repeats.",
    ),
    LogEvent(
        name="identity_conflict",
        level="WARN",
        component="gateway",
        meaning=(
            "An upload's identity is owned by other bytes. It was answered with 409 and "
            "quarantined."
        ),
        action="Inspect it with `sluice conflicts show` and resolve it.",
    ),
    LogEvent(
        name="journal_lapsed",
        level="WARN",
        component="gateway",
        meaning=(
            "No object of the acceptance journal was written for 60 seconds, or the process was "
            "suspended. It registered again before its next response."
        ),
        action="Check the connection to the store, and the load of the machine, if it repeats.",
    ),
    LogEvent(
        name="journal_not_closed",
        level="WARN",
        component="gateway",
        meaning=(
            "A stopping gateway could not write the last object of its journal. "
            "`accepted_until` does not pass its last object before a full pass."
        ),
        action="Check the connection to the store. The next full pass replaces the journal.",
    ),
    LogEvent(
        name="journal_not_registered",
        level="WARN",
        component="gateway",
        meaning=(
            "The gateway could not register before a response. The upload was answered with 503."
        ),
        action="Check the store and the rights of the gateway under `gateways/v1/`.",
    ),
    LogEvent(
        name="journal_not_written",
        level="WARN",
        component="gateway",
        meaning=(
            "An object of the acceptance journal was not written. The same bytes are written "
            "again; after 60 seconds uploads are answered with 503."
        ),
        action="Check the store and the rights of the gateway under `gateways/v1/`.",
    ),
    LogEvent(
        name="principals_invalid",
        level="ERROR",
        component="gateway",
        meaning=(
            "The principals file changed and cannot be used. The previous principals stay in "
            "effect."
        ),
        action="Correct the file.",
    ),
    LogEvent(
        name="quarantine_reference_not_written",
        level="WARN",
        component="gateway",
        meaning=(
            "The index entry of a quarantined upload could not be written. The reconciler "
            "writes it later."
        ),
        action="None.",
    ),
    LogEvent(
        name="spool_blob_unreadable",
        level="WARN",
        component="gateway",
        meaning="The head of a blob in the spool is damaged. The blob is kept.",
        action="Check the disk of the spool.",
    ),
    LogEvent(
        name="spool_journal_not_written",
        level="WARN",
        component="gateway",
        meaning=(
            "Transferred batches could not be named in the acceptance journal. They stay pending "
            "and are named by a later pass."
        ),
        action="Check the connection to the store, and the free space of the spool's disk.",
    ),
    LogEvent(
        name="spool_record_pending",
        level="WARN",
        component="gateway",
        meaning="A spooled record could not be transferred yet. It is retried.",
        action="Check the connection to the store if it repeats.",
    ),
    LogEvent(
        name="spool_sweep_delayed",
        level="WARN",
        component="gateway",
        meaning="The search for unneeded blobs in the spool failed. It is retried.",
        action="Check the disk of the spool if it repeats.",
    ),
    LogEvent(
        name="spool_transfer_conflict",
        level="ERROR",
        component="gateway",
        meaning=(
            "The authority already has other bytes for the identity of a spooled batch. The "
            "spooled bytes are quarantined."
        ),
        action=(
            "Two gateways accepted one identity, for example after a spool was copied. Resolve "
            "the conflict."
        ),
    ),
    LogEvent(
        name="spool_transfer_delayed",
        level="WARN",
        component="gateway",
        meaning="The transfer of the spool failed. It is retried.",
        action="Check the connection to the store if it repeats.",
    ),
    LogEvent(
        name="spool_transfer_incomplete",
        level="WARN",
        component="gateway",
        meaning=(
            "The gateway exited with code 1: records are not transferred. They stay in the spool."
        ),
        action="Start the gateway again with the same spool.",
    ),
    LogEvent(
        name="store_not_proved",
        level="ERROR",
        component="gateway",
        meaning="The newest doctor result does not prove the store. Uploads are refused.",
        action="Run `sluice doctor` and correct what it reports.",
    ),
    LogEvent(
        name="store_not_writable",
        level="WARN",
        component="gateway",
        meaning=(
            "The write probe failed, for example because the disk is full. The gateway is not "
            "ready until a write succeeds."
        ),
        action="Follow `reason`: free space, or check permissions and the network.",
    ),
    LogEvent(
        name="store_probe_skipped",
        level="WARN",
        component="gateway",
        meaning="The gateway runs without a doctor result because `skip_probe` is set.",
        action="Run `sluice doctor` and remove the setting.",
    ),
    LogEvent(
        name="store_unavailable",
        level="WARN",
        component="gateway",
        meaning=(
            "An upload was answered with 503 because the store failed. The agent sends it again."
        ),
        action="Check the store if it repeats.",
    ),
    LogEvent(
        name="store_unreachable",
        level="WARN",
        component="gateway",
        meaning="The readiness check of the store failed.",
        action="Check the store and the network.",
    ),
    LogEvent(
        name="stored_object_corrupt",
        level="ERROR",
        component="gateway",
        meaning="A stored manifest or blob is damaged. The upload was answered with 500.",
        action="Run `sluice audit run`, and restore the object from a backup or an older version.",
    ),
    LogEvent(
        name="worker_killed",
        level="ERROR",
        component="gateway",
        meaning="A worker process was killed by a signal. A new one was started.",
        action="Check memory limits and the system log.",
    ),
    LogEvent(
        name="write_probe_not_deleted",
        level="WARN",
        component="gateway",
        meaning=(
            "The object of the write probe could not be deleted. It is kept, and the next probe "
            "proves less."
        ),
        action="Allow the gateway's role to delete under `doctor/v1/`, see `docs/policies.md`.",
    ),
    LogEvent(
        name="gc_failed",
        level="ERROR",
        component="gc",
        meaning="A garbage collection cycle failed. Nothing was deleted without a proof.",
        action="Correct the cause; the next cycle continues.",
    ),
    LogEvent(
        name="gc_refused",
        level="ERROR",
        component="gc",
        meaning="A safety rule refused a garbage collection cycle.",
        action="Follow the rule's reason; see `docs/gc.md`.",
    ),
    LogEvent(
        name="maintenance_job_failed",
        level="ERROR",
        component="maintain",
        meaning="A job failed with an error that sluice did not raise. It is tried again.",
        action="Report the traceback.",
    ),
    LogEvent(
        name="maintenance_lease_lost",
        level="WARN",
        component="maintain",
        meaning=(
            "The lease of a running task could not be renewed in time. The job was stopped; "
            "another process runs the task."
        ),
        action="None. Check store and machine if it repeats.",
    ),
    LogEvent(
        name="maintenance_problem_found",
        level="ERROR",
        component="maintain",
        meaning="A task succeeded and found a problem, for example an audit with findings.",
        action="Follow the `reason`.",
    ),
    LogEvent(
        name="maintenance_result_not_recorded",
        level="WARN",
        component="maintain",
        meaning="The result of a run could not be stored. The next run counts it as lost.",
        action="None. Check the store if it repeats.",
    ),
    LogEvent(
        name="maintenance_rights_missing",
        level="WARN",
        component="maintain",
        meaning="At the start the store denied requests that a task needs. `missing` lists them.",
        action="Use a role with the rights of the task, select another `profile` for it, or set "
        "`enabled = false`.",
    ),
    LogEvent(
        name="maintenance_store_unreachable",
        level="WARN",
        component="maintain",
        meaning="The records of the tasks cannot be read or written. Nothing new starts.",
        action="Check the store, the credentials and the role; it continues automatically.",
    ),
    LogEvent(
        name="maintenance_task_failed",
        level="WARN",
        component="maintain",
        meaning="A run failed. It is tried again after a pause that doubles.",
        action="Follow the `reason` if it repeats.",
    ),
    LogEvent(
        name="maintenance_task_halted",
        level="ERROR",
        component="maintain",
        meaning="A safety rule refused. The task does not run until it is resumed.",
        action="Remove the cause in `reason`, then run `sluice maintain resume TASK`.",
    ),
    LogEvent(
        name="maintenance_task_not_permitted",
        level="ERROR",
        component="maintain",
        meaning="The store denied a request of a task. It is tried again after its interval.",
        action="Use a role with the rights of the task, or set `enabled = false` for it.",
    ),
    LogEvent(
        name="maintenance_worker_killed",
        level="WARN",
        component="maintain",
        meaning="A job did not stop in `stop_grace_s`. Its worker process was killed.",
        action="None. Its other jobs are tried again.",
    ),
    LogEvent(
        name="accepted_manifests_missing",
        level="ERROR",
        component="reconciler",
        meaning="Accepted manifests that were enqueued no longer exist.",
        action="Find what deleted them, and restore them from noncurrent versions.",
    ),
    LogEvent(
        name="batch_held",
        level="ERROR",
        component="reconciler",
        meaning=(
            "A batch cannot be enqueued because its manifest or blob is missing or damaged. A "
            "hold record keeps it."
        ),
        action=(
            "Restore the object, then the batch is released. `sluice explain` shows the details."
        ),
    ),
    LogEvent(
        name="batch_released",
        level="WARN",
        component="reconciler",
        meaning="A held batch is valid again and was enqueued.",
        action="None.",
    ),
    LogEvent(
        name="batches_missed_by_journals",
        level="WARN",
        component="reconciler",
        meaning=(
            "A full pass found batches that a journal should have named. A gateway died before it "
            "wrote its journal, or left an upload unanswered."
        ),
        action=(
            "None if a gateway died: the batches are enqueued. Otherwise report it with `sluice "
            "reconciler status`."
        ),
    ),
    LogEvent(
        name="discovery_record_unreadable",
        level="WARN",
        component="reconciler",
        meaning=(
            "`reconciler/v1/discovery.json` is damaged. It is written again, and journals are "
            "read again."
        ),
        action="None. Investigate the store if it repeats.",
    ),
    LogEvent(
        name="event_invalid",
        level="WARN",
        component="reconciler",
        meaning="A store event cannot be parsed. It was dropped; full passes find its object.",
        action="Check which events the queue or webhook receives.",
    ),
    LogEvent(
        name="full_pass_failed",
        level="WARN",
        component="reconciler",
        meaning="A full pass failed. The next one starts on schedule.",
        action="Check the store if it repeats.",
    ),
    LogEvent(
        name="gateway_process_lapsed",
        level="WARN",
        component="reconciler",
        meaning=(
            "A gateway process has written no journal object for two minutes. `accepted_until` "
            "stays at its last time until a full pass, which starts now, has ended."
        ),
        action="None for the answers. Find out why the gateway died or cannot write.",
    ),
    LogEvent(
        name="gateway_registration_unreadable",
        level="WARN",
        component="reconciler",
        meaning=(
            "The registration of a gateway process is damaged. It bounds `accepted_until` until a "
            "full pass."
        ),
        action="Find out what changed the object. Restart that gateway.",
    ),
    LogEvent(
        name="gateway_without_journal",
        level="WARN",
        component="reconciler",
        meaning=(
            "A gateway accepts batches and writes no journal. Full passes decide `accepted_until`."
        ),
        action="Upgrade that gateway.",
    ),
    LogEvent(
        name="high_water_unreadable",
        level="WARN",
        component="reconciler",
        meaning="An agent's high-water mark is damaged or names another boot. It is ignored.",
        action="None. Investigate the store if it repeats.",
    ),
    LogEvent(
        name="http_queue_fenced",
        level="WARN",
        component="reconciler",
        meaning="Another process consumes a lane of the HTTP queue. This process released it.",
        action="Run one consumer of a queue, or ignore a planned takeover.",
    ),
    LogEvent(
        name="inventory_file_skipped",
        level="WARN",
        component="reconciler",
        meaning=(
            "A file of an S3 Inventory report cannot be read. Its keys are found by full passes."
        ),
        action="Check the inventory configuration.",
    ),
    LogEvent(
        name="journal_broken",
        level="WARN",
        component="reconciler",
        meaning=(
            "A journal object is missing or damaged. Reading continues after a full pass has "
            "listed what it named."
        ),
        action="Find out what deleted or changed the object.",
    ),
    LogEvent(
        name="journal_entries_absent",
        level="WARN",
        component="reconciler",
        meaning="A journal names batches without a manifest. They are skipped.",
        action="Find out what deleted the manifests under `accepted/`.",
    ),
    LogEvent(
        name="lane_halted",
        level="ERROR",
        component="reconciler",
        meaning="A lane accepts no batches because its register is lost or damaged.",
        action="Run `sluice rebuild`.",
    ),
    LogEvent(
        name="lane_taken_over",
        level="WARN",
        component="reconciler",
        meaning="Another reconciler took over a lane.",
        action="None, unless it repeats: then check the load and clocks of the reconcilers.",
    ),
    LogEvent(
        name="live_batch_skipped",
        level="WARN",
        component="reconciler",
        meaning="A batch could not be read for the live window. Live answers are marked partial.",
        action="None. The batch is ingested as usual.",
    ),
    LogEvent(
        name="member_record_unreadable",
        level="WARN",
        component="reconciler",
        meaning="The member record of another reconciler cannot be decoded; it is ignored.",
        action="Upgrade the reconcilers to the same release. Delete the record if it is old.",
    ),
    LogEvent(
        name="pass_record_unreadable",
        level="WARN",
        component="reconciler",
        meaning=(
            "`reconciler/v1/full-pass.json` is damaged. The full pass starts from the beginning."
        ),
        action="None. Investigate the store if it repeats.",
    ),
    LogEvent(
        name="queue_data_incomplete",
        level="WARN",
        component="reconciler",
        meaning=(
            "The data of a claimed queue entry could not be read while it was sent. The entry was "
            "returned to the queue."
        ),
        action="Check the blob that the reason names, and the store.",
    ),
    LogEvent(
        name="reconciler_work_ended",
        level="ERROR",
        component="reconciler",
        meaning="A background task ended with an unexpected error.",
        action="Restart the reconciler and report the traceback.",
    ),
    LogEvent(
        name="register_lost",
        level="ERROR",
        component="reconciler",
        meaning=("The register or the state of a lane is missing, replaced or damaged (`defect`)."),
        action="Run `sluice rebuild`.",
    ),
    LogEvent(
        name="route_failed",
        level="WARN",
        component="reconciler",
        meaning="A route of discovery failed. It is retried.",
        action="Check the store or the event source if it repeats.",
    ),
    LogEvent(
        name="sequence_range_enqueued_again",
        level="WARN",
        component="reconciler",
        meaning=(
            "It cannot be decided which batches of a range were enqueued, so the range is "
            "enqueued again. The ledger drops repetitions."
        ),
        action="None.",
    ),
    LogEvent(
        name="dead_letter_written",
        level="WARN",
        component="spark",
        meaning="A batch could not be ingested because its blob is missing or damaged.",
        action=(
            "Restore the blob; the reconciler enqueues the batch again. See the table "
            "`dead_letters`."
        ),
    ),
    LogEvent(
        name="index_chunk_unreadable",
        level="WARN",
        component="spark",
        meaning="An index chunk is damaged. Searches read its files without it.",
        action="Delete the chunk and run `sluice spark index`.",
    ),
    LogEvent(
        name="query_restarted",
        level="WARN",
        component="spark",
        meaning="The ingest's streaming query ended with a transient error and was restarted.",
        action="None. Investigate the `reason` if it repeats; a permanent error ends the job.",
    ),
    LogEvent(
        name="store_clock_rebuilt",
        level="WARN",
        component="store",
        meaning=(
            "The clock file of a directory store was missing, empty or damaged. Timestamps "
            "continue above the newest file of the store (`continues_at_ns`)."
        ),
        action="Find out what removed or damaged the file.",
    ),
    LogEvent(
        name="http_server_error",
        level="ERROR",
        component="web",
        meaning="The HTTP server failed outside of a request handler (`reason`).",
        action="Report the traceback.",
    ),
    LogEvent(
        name="library_error",
        level="ERROR",
        component="web",
        meaning="A library reported an error (`logger`, `reason`).",
        action="Follow the reason; report the traceback if there is one.",
    ),
    LogEvent(
        name="library_warning",
        level="WARN",
        component="web",
        meaning="A library reported a warning (`logger`, `reason`).",
        action="Follow the reason if it repeats.",
    ),
    LogEvent(
        name="request_error",
        level="ERROR",
        component="web",
        meaning="A request failed with an error that an operator must act on (`code`, `reason`).",
        action="Follow the reason.",
    ),
    LogEvent(
        name="request_failed",
        level="ERROR",
        component="web",
        meaning="A request failed with an unexpected error. It was answered with 500.",
        action="Report the traceback.",
    ),
)
"""Every WARN and ERROR event, sorted by component and name."""

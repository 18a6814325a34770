"""What a run may do follows the grants in the store while the run goes on."""

from dataclasses import replace
from pathlib import Path

import pytest

from task.approvals.approvals import ApprovalRules, Approvals, RunApprovals
from task.permissions.decisions import Allowed, Deferred, PermissionMode
from task.permissions.gate import Grant
from task.runs.request import RunCaller
from tests.support.gating import CHANGES, request
from tests.support.stores import OWNER, opened, sqlite_url


@pytest.mark.fault("approval: a permission that is taken back while a run uses it")
@pytest.mark.parametrize("where", ["here", "in another process"])
async def test_a_grant_that_is_revoked_ends_at_once_for_a_run_in_progress(where: str, tmp_path: Path) -> None:
    rules, call = ApprovalRules(), request("send", CHANGES)
    async with opened(sqlite_url(tmp_path)) as store, opened(sqlite_url(tmp_path)) as other:
        session_id = (await store.sessions.start(OWNER)).session_id
        grants = [Grant("tool", name, OWNER, session_id, rules.clock() + 60) for name in ("send", "post")]
        sending, _ = [await store.grants.add(OWNER, grant.as_dict(), session_id=session_id) for grant in grants]
        run_id = (await store.runs.start(OWNER)).run_id
        run = RunApprovals(store, rules, OWNER, session_id, run_id)
        caller = RunCaller(OWNER).of_tools(session_id)
        rules = replace(rules, refresh=run.refresh)
        approvals = await Approvals.of(rules, caller, await run.state(), (), ())
        gate = approvals.gate(PermissionMode.DEFAULT)
        assert isinstance(await gate.decide(call), Allowed)
        await (store if where == "here" else other).grants.revoke(OWNER, sending.grant_id)
        assert isinstance(await gate.decide(call), Deferred)
        assert isinstance(await gate.decide(request("post", CHANGES)), Allowed)
        await run.save(approvals.grants.lasting())
        assert [item.data["tool"] for item in await store.grants.list(OWNER, session_id)] == ["post"]

"""The rules of a job, tried in workers: what is done when one dies, and where none can be had."""

from __future__ import annotations

from enum import Enum

from pullback.check.collected import Collected
from pullback.check.findings.finding import Finding, Rule
from pullback.check.job import Job
from pullback.check.processes import fresh
from pullback.check.processes.crash import RULE as CRASH
from pullback.check.processes.crash_diagnosis import CrashCause, cause_of
from pullback.check.processes.endings import Died
from pullback.check.processes.forked import messages
from pullback.check.processes.fresh import CannotSendError, fresh_messages
from pullback.check.processes.isolate import CannotForkError, why_no_fork
from pullback.check.processes.warm import warm_up
from pullback.check.target.target import Target
from pullback.check.work import work
from pullback.errors import InternalError, TargetError
from pullback.judge.run import describe

# Workers that may be lost before the rest is given up: a hang counts whole, a crash a quarter.
ENOUGH = 1.0

HERE = "the rules ran in this process, which a crash or a hang would have ended"


class Where(Enum):
    """The process in which the rules are tried."""

    FORK = "a fork of this one"
    FRESH = "one that is started afresh"
    HERE = "this one"


class Driver:
    """Tries the rules of a job, and notes what is said of each."""

    def __init__(self, job: Job, collected: Collected) -> None:
        self._job, self._collected = job, collected
        self.where = Where.FORK

    def try_rules(self, *, isolate: bool) -> None:
        """Try every rule: in workers where that is wanted and can be, else in this process."""
        why_not = self._try_elsewhere() if isolate else "asked to"
        if why_not:
            self._collected.notes.append(f"{HERE}: {why_not}")
            self.where = Where.HERE
            self._try_here()

    def _try_elsewhere(self) -> str:
        """The rules in workers; why that cannot be, where it cannot: nothing was done then."""
        why_not = why_no_fork()
        if not why_not:
            warm_up(self._job.rules, self._job.profile)
            try:
                self._drive()
                return ""
            except CannotForkError as refusal:
                why_not = str(refusal)
        self.where = Where.FRESH
        try:
            self._drive()
            return ""
        except CannotSendError as refusal:
            if fresh.is_on_gpu(self._job):
                raise _not_sent(self._job.target, refusal) from None
            return f"{why_not}; and it cannot be sent to another one: {refusal}"

    def _drive(self) -> None:
        """Workers one after the other, until every rule has been tried or too many were lost."""
        first, lost = 0, 0.0
        while first < len(self._job.rules):
            start = messages if self.where is Where.FORK else fresh_messages
            try:
                for message in start(self._job, first, self._collected.seconds):
                    self._collected.take(message)
                return
            except Died as death:
                if death.is_idle and self.where is Where.FORK and self._can_be_sent():
                    self.where = Where.FRESH  # threads of this process are not in a fork: it froze
                    first = max(self._collected.current, first)
                    continue
                self._note(death)
                lost += self._weight(death)
                first = max(self._collected.current + 1, first + 1)
            if lost > ENOUGH:
                self._give_up()
                return

    def _weight(self, death: Died) -> float:
        """How much the loss of a worker counts."""
        if self._collected.current < 0:
            return ENOUGH + 1  # every rule begins with the example that it died at
        if death.is_hang and not death.is_slow:
            return 1.0
        return 0.0 if self._rule.wraps else 0.25

    def _give_up(self) -> None:
        left = self._job.rules[max(self._collected.current + 1, 0) :]
        if left:
            reason = "rules were not tried: too many workers were lost"
            self._collected.notes.append(f"{len(left)} {reason}")
            self._collected.lost += [one.rule.code for one in left]

    def _can_be_sent(self) -> bool:
        try:
            return bool(fresh.packed(self._job))
        except CannotSendError:
            return False

    def _try_here(self) -> None:
        """The rules in this process, where only `sys.exit` and the like can be survived."""
        first = 0
        while first < len(self._job.rules):
            try:
                work(self._job, self._collected.take, first)
                return
            except (Exception, KeyboardInterrupt):
                raise
            except BaseException as error:
                is_exit = isinstance(error, SystemExit)
                how = "it called sys.exit" if is_exit else f"it raised {describe(error)}"
                self._note(Died(how))
                if self._collected.current < 0:
                    return
                first = self._collected.current + 1

    # ---- a worker that is lost ----

    @property
    def _rule(self) -> Rule:
        """The rule that is tried; while the examples are, it is that of crashes."""
        current = self._collected.current
        return self._job.rules[current].rule if current >= 0 else CRASH

    def _note(self, death: Died) -> None:
        """A finding, or the reason why the rule that was tried has no result."""
        is_tried = self._collected.current >= 0
        if death.is_ours and not is_tried:
            name = self._job.target.name
            raise InternalError(f"`{name}` must be something to check", got=death.how)
        excuse = _excuse(death, self._rule, is_tried=is_tried)
        if excuse:
            self._collected.refuse(self._rule, f"{excuse}: {death.how}")
            return
        self._collected.lost += [self._rule.code] if is_tried else []
        results = self._collected.results
        if any(isinstance(one, Finding) and one.rule.code == CRASH.code for one in results):
            self._collected.refuse(self._rule, f"the process was lost here as well: {death.how}")
            return
        results.append(self._crash(death))

    def _crash(self, death: Died) -> Finding:
        """What is found where the function ends the process that it runs in."""
        job, cause = self._job, self._cause(death)
        is_tried = self._collected.current >= 0
        found = Finding.made(
            CRASH,
            at=f"while `{self._rule.name}` was tried" if is_tried else "at the example itself",
            expected="a result or an exception",
            got=death.how,
            facts={"kernel": cause.kernel} if cause.kernel else {},
            inputs=cause.inputs or job.examples[0].words(job.names),
            repro=cause.repro,
            fix="raise an exception where the arguments cannot be served",
        )
        return found.of(job.target.name, job.target.place("backward", "vjp", "forward"))

    def _cause(self, death: Died) -> CrashCause:
        """The call and the kernel by which a worker was lost, as far as that can be found."""
        if self.where is Where.FRESH:
            return fresh.cause_of_loss(self._job, self._collected.current)
        if self.where is Where.HERE or death.is_hang:
            return CrashCause()
        return cause_of(self._job, self._collected.current)


def _excuse(death: Died, rule: Rule, *, is_tried: bool) -> str:
    """Why the loss of a worker is no finding about the function; empty where it is one."""
    if death.is_ours:
        return "the check itself failed"
    if rule.group == "compile" and death.is_hang:
        return "the compiler takes too long"
    if death.is_slow and is_tried:
        return "its trials take too long here, so it was ended"
    return "tensors without memory of their own cannot be read" if rule.wraps else ""


def _not_sent(target: Target, refusal: CannotSendError) -> TargetError:
    """What is said of a function on a GPU that no worker can be given."""
    return TargetError(
        f"`{target.name}` must be something that another process can be given, with its inputs",
        expected="nothing that belongs to this process: a lock, an open file, a stream",
        got=str(refusal),
        fix="define it in a module and name it 'module:Name'; with isolate=False the rules run "
        "here, and a kernel that strays takes the GPU from this process",
    )

"""Disturbances of a world: each kind is a method, which returns when the processes that it ended run again.

A crash point is a kind as well: a daemon is started so that it dies there.
"""
import shutil
import signal
import time

from cluster import SLOW

SILENCE_S = 5  # after which a daemon gives up a peer
END_S = 15 * SLOW
POINT_S = 6 * SLOW
# Points that a daemon reaches only after it died at another one: {point: the other}.
BEFORE = {"resume.replayed": "update.valid", "coordinator.recovering": "vote.sent"}
# Points that a daemon usually reaches once in its life.
ONCE = ("attach.", "attempt.", "checkpoint.", "open.", "resume.", "coordinator.start", "coordinator.recovering",
        "move.", "fill.drafted", "fill.filled")
# Points that only worlds with mirrors have.
MIRRORED = ("mirror.", "fill.")
EAGER = ("ahead.", "coordinator.ahead")


class Tally:
    """How often each disturbance was made, and how long it took until training went on."""

    def __init__(self):
        self.kills, self.times, self.points, self.missed = {}, {}, {}, {}  # by kind; by point

    def kill(self, what):
        self.kills[what] = self.kills.get(what, 0) + 1

    def took(self, kind, seconds):
        self.times.setdefault(kind, []).append(seconds)

    @property
    def killed(self):
        return sum(self.kills.values())


class Disturber:
    def __init__(self, world, tally):
        self.w, self.rng, self.tally = world, world.rng, tally

    # ---- building blocks ------------------------------------------------------------

    def pause(self):
        """Waits before a restart; mostly not at all."""
        self.w.wait(self.rng.choice((0, 0, 0, self.rng.uniform(0, 0.3), self.rng.uniform(0.3, 1.5))))

    def any_trainer(self):
        return self.rng.choice(self.w.trainers)

    def any_node(self):
        return self.rng.randrange(len(self.w.cluster.daemons))

    def kill_trainer(self, t):
        self.w.note(f"kill rank {t.rank}")
        t.kill()
        self.w.ranks_hit.add(t.rank)
        self.tally.kill("trainer")

    def end_daemon(self, i, how=signal.SIGKILL):
        d = self.w.cluster[i]
        self.w.note(f"{signal.Signals(how).name} to {d.name}")
        self.w.armed[d] = True  # poll() may find it ended
        d.process.send_signal(signal.SIGCONT)
        d.process.send_signal(how)
        self.w.nodes_hit.add(i)
        if how == signal.SIGKILL:
            d.process.wait()
            self.tally.kill("daemon")

    def start_daemon(self, i, crash=None):
        d = self.w.cluster[i]
        self.w.note(f"start {d.name}" + (f", to die at {crash}" if crash else ""))
        d.start(crash=crash)
        if not crash:
            del self.w.armed[d]

    # ---- kinds -------------------------------------------------------------------------

    def trainer_killed(self):
        t = self.any_trainer()
        self.kill_trainer(t)
        self.pause_without([t])
        t.start()

    def pause_without(self, dead):
        """pause() that does not poll the dead trainers."""
        alive = self.w.trainers
        self.w.trainers = [t for t in alive if t not in dead]
        self.pause()
        self.w.trainers = alive

    def trainers_killed(self):
        some = self.rng.sample(self.w.trainers, self.rng.randint(2, len(self.w.trainers)))
        for t in some:
            self.kill_trainer(t)
        self.pause_without(some)
        for t in some:
            t.start()

    def daemon_killed(self):
        i = self.any_node()
        self.end_daemon(i)
        self.pause()
        self.start_daemon(i)

    def daemons_killed(self):
        nodes = list(range(len(self.w.cluster.daemons)))
        self.rng.shuffle(nodes)
        for i in nodes:
            self.end_daemon(i)
        self.pause()
        for i in nodes:
            self.start_daemon(i)

    def trainer_and_daemon_killed(self):
        i, t = self.any_node(), self.any_trainer()
        deeds = [lambda: self.kill_trainer(t), lambda: self.end_daemon(i)]
        self.rng.shuffle(deeds)
        for deed in deeds:
            deed()
        self.pause_without([t])
        self.start_daemon(i)
        t.start()

    def everything_killed(self):
        everyone = list(self.w.trainers)
        for i in range(len(self.w.cluster.daemons)):
            self.end_daemon(i)
        for t in everyone:
            self.kill_trainer(t)
        for i in range(len(self.w.cluster.daemons)):
            self.start_daemon(i)
        for t in everyone:
            t.start()

    def killed_in_recovery(self):
        for _ in range(self.rng.randint(2, 4)):
            self.rng.choice((self.trainer_killed, self.daemon_killed, self.daemon_killed))()
            self.w.wait(self.rng.uniform(0, 0.5))

    def trainer_stopped(self):
        t = self.any_trainer()
        self.w.note(f"stop rank {t.rank}")
        t.actor.stop()
        self.w.wait(self.rng.uniform(0.05, 1))
        t.actor.go_on()
        self.w.ranks_hit.add(t.rank)

    def stop_daemon(self, seconds):
        i = self.any_node()
        self.w.note(f"stop {self.w.cluster[i].name} for {seconds:.2f} s")
        self.w.cluster[i].stop()
        self.w.wait(seconds)
        self.w.cluster[i].go_on()
        self.w.nodes_hit.add(i)

    def daemon_stopped(self):
        self.stop_daemon(self.rng.uniform(0.05, 2))

    def daemon_stopped_long(self):
        self.stop_daemon(SILENCE_S + self.rng.uniform(1, 2.5))

    def cut(self, seconds):
        if not self.w.cluster.network:
            return self.stop_daemon(seconds)
        i, far = self.any_node(), self.rng.random() < 0.5
        self.w.note(f"cut {self.w.cluster[i].name} off for {seconds:.2f} s")
        self.w.cluster.network.cut(i, far)
        self.w.wait(seconds)
        self.w.cluster.network.mend(i)
        self.w.nodes_hit.add(i)
        return None

    def link_cut(self):
        self.cut(self.rng.uniform(0.05, 2))

    def link_cut_long(self):
        self.cut(SILENCE_S + self.rng.uniform(1, 2.5))

    def trainer_replaced(self):
        """A successor takes a stopped rank's place; when the old process goes on, it gets ERANK and changes nothing."""
        t = self.any_trainer()
        old = t.actor
        self.w.note(f"stop rank {t.rank}, and start its successor")
        old.stop()
        t.start()
        self.w.ranks_hit.add(t.rank)
        self.w.wait(self.rng.uniform(0, 0.5))
        old.go_on()
        self.w.wait_for(lambda: old.ready() or not old.asked, "the fenced rank's answer")
        reply = {"status": "OK"}
        while old.asked and reply["status"] == "OK":
            reply = old.finish()
        assert reply["status"] == "ERANK" and "incarnation" in reply["text"], f"{t.rank}: {reply}"
        self.w.cluster.dismiss(old)

    def daemon_upgraded(self):
        """SIGTERM, as an upgrade does: trainers see a pause."""
        i = self.any_node()
        d = self.w.cluster[i]
        self.end_daemon(i, signal.SIGTERM)
        self.w.wait_for(lambda: not d.alive(), f"the end of {d.name}", END_S)
        assert d.process.returncode == 0, f"{d.name} ended with status {d.process.returncode}"
        self.start_daemon(i)

    def killed_in_checkpoint(self):
        self.w.checkpoint()
        self.w.wait(self.rng.uniform(0, 0.05))
        self.rng.choice((self.trainer_killed, self.daemon_killed))()

    def possible(self, kind):
        return self.w.plan.mirrored or kind != "node_lost"

    def lose(self, i, crash=None):
        """Kills the daemon and deletes its states, as if an empty machine replaced its own.  All mirrors must be
        filled before."""
        self.end_daemon(i)
        shutil.rmtree(self.w.cluster[i].options["state_dir"])
        self.w.note(f"the states of {self.w.cluster[i].name} are lost")
        self.pause()
        self.start_daemon(i, crash)

    def node_lost(self):
        self.lose(self.any_node())

    def change_owners(self, command, node, by):
        """Asks for a change; its epoch.  The caller waits until the nodes use the new list."""
        self.w.note(f"{command} n{node}")
        self.w.nodes_hit.add(node)
        return self.w.cluster[by].change_owners(command, f"n{node}")["epoch"]

    def owners_changed(self):
        """A node is removed from the owners, and then added again."""
        node = self.any_node()
        for command in ("remove-node", "add-node"):
            self.w.can_change()
            self.w.agreed(self.change_owners(command, node, self.any_node()))
            self.rng.choice((self.pause, self.w.recovered))()

    # ---- crash points ------------------------------------------------------------------

    def dies_at(self, i, crash):
        """Starts daemon i so that it dies at a point; whether it reached it."""
        d = self.w.cluster[i]
        if d.alive():
            self.end_daemon(i)
        self.start_daemon(i, crash)
        return self.died(i, crash)

    def died(self, i, crash):
        d = self.w.cluster[i]
        end = time.monotonic() + POINT_S
        while d.alive() and time.monotonic() < end:
            self.w.wait(0.01)
            if crash.startswith("checkpoint."):
                self.w.checkpoint()
        if d.alive():
            return False
        assert d.process.returncode == -signal.SIGKILL, f"{d.name}: status {d.process.returncode}: {d.log()[-1000:]}"
        self.w.note(f"{d.name} died at {crash}")
        self.tally.kill("crash point")
        return True

    def armed(self, i, crash):
        """Starts daemon i so that it dies at a point; returns when the job trains."""
        self.end_daemon(i)
        self.start_daemon(i, crash)
        self.w.recovered()

    def starts_again(self, i):
        """Starts daemon i again, whether or not it reached its crash point."""
        if self.w.cluster[i].alive():
            self.end_daemon(i)
        self.pause()
        self.start_daemon(i)

    def dies_sending(self, i, crash):
        """Another node loses its states; daemon i dies while it sends them to that node."""
        self.armed(i, crash)
        other = self.rng.choice([n for n in range(self.w.plan.nodes) if n != i])
        self.lose(other)
        hit = self.died(i, crash)
        self.starts_again(i)
        return hit

    def dies_in_move(self, i, crash):
        """Daemon i dies while an owner is removed; then that owner is added again."""
        nodes = range(self.w.plan.nodes)
        node = self.rng.choice(nodes)
        if crash == "move.whole":
            i = self.coordinator([n for n in self.w.owners if n != node])
        self.armed(i, crash)
        self.w.can_change()
        epoch = self.change_owners("remove-node", node, self.rng.choice([n for n in nodes if n != i]))
        hit = self.died(i, crash)
        self.starts_again(i)
        self.w.agreed(epoch)
        self.rng.choice((self.pause, self.w.recovered))()
        self.w.can_change()
        self.w.agreed(self.change_owners("add-node", node, self.any_node()))
        return hit

    def coordinator(self, owners):
        h = 14695981039346656037
        for byte in self.w.job.encode():
            h = (h ^ byte) * 1099511628211 % 2**64
        return owners[(h >> 32) % len(owners)]

    def places(self, point):
        """The nodes that can reach a point, with this placement of the ranks."""
        if point.startswith(MIRRORED) and not self.w.plan.mirrored:
            return []
        if point.startswith(EAGER) and not self.w.plan.eager:
            return []
        ranks = [self.w.plan.placement.count(i) for i in range(self.w.plan.nodes)]
        if point.startswith("coordinator."):
            return [self.coordinator(self.w.owners)]
        if point == "push.summed":  # one rank has nothing to add up
            return [i for i, n in enumerate(ranks) if n > 1]
        if point.startswith(("push.", "attach.")):
            return [i for i, n in enumerate(ranks) if n]
        if point in ("accumulator.part", "accumulator.landed"):
            return [i for i, n in enumerate(ranks) if n < sum(ranks)]
        return list(range(len(ranks)))

    def crash_at(self, point):
        places = self.places(point)
        # after a miss, try another node
        i = places[self.tally.missed[point] % len(places)] if point in self.tally.missed else self.rng.choice(places)
        times = 1 if point.startswith(ONCE) else self.rng.choice((1, 1, 2, 3, 7))
        if point in BEFORE:
            self.dies_at(i, BEFORE[point])
        if point.startswith("move."):
            return self.counted(point, self.dies_in_move(i, point))
        if point == "fill.sending":
            return self.counted(point, self.dies_sending(i, f"{point}:{times}"))
        if point.startswith("fill."):
            self.lose(i, point)
            hit = self.died(i, point)
        else:
            hit = self.dies_at(i, f"{point}:{times}")
        self.counted(point, hit)
        if not hit:
            self.end_daemon(i)
        self.pause()
        self.start_daemon(i)
        return hit

    def counted(self, point, hit):
        counts = self.tally.points if hit else self.tally.missed
        counts[point] = counts.get(point, 0) + 1
        return hit


# Weights; a long silence costs seconds.
KINDS = {"trainer_killed": 6, "trainers_killed": 2, "daemon_killed": 6, "daemons_killed": 2,
         "trainer_and_daemon_killed": 2, "everything_killed": 1, "killed_in_recovery": 3, "trainer_stopped": 1,
         "daemon_stopped": 1, "link_cut": 1, "daemon_stopped_long": 0.2, "link_cut_long": 0.2, "trainer_replaced": 1,
         "daemon_upgraded": 1, "killed_in_checkpoint": 2, "node_lost": 2, "owners_changed": 1}

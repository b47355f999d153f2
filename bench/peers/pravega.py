"""Pravega's standalone server with its Java client, in a network namespace that has only loopback.

Its controller listens on all interfaces, and there is no other here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from bench.peers import environments, events, servers
from bench.peers.peer import Absent, Found, Limit, Peer, quantiles
from bench.peers.processes import load
from bench.peers.worker import Worker

_WORKER = Path(__file__).with_name("PravegaWorker.java")
_SERVER = "io.pravega.local.LocalPravegaEmulator"
_NO_SPARK = "its connector is not published for Spark 4"
_SETTINGS = "singlenode.controller.rest.enable=false\n"
_LOGGING = """\
<configuration>
  <appender name="errors" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target><encoder><pattern>%d %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="errors"/></root>
</configuration>
"""
_SCRIPT = f"""
ip link set lo up
cd "$1"
"$2" -Dlogback.configurationFile=logging.xml -Xmx3g -XX:MaxDirectMemorySize=5g \\
  -Dpravegaservice.cache.size.max=4294967296 -cp "$3/*" {_SERVER} >server.log 2>&1 </dev/null &
server=$!
trap 'kill $server 2>/dev/null; wait $server' EXIT
for try in $(seq 300); do
  if (exec 3<>/dev/tcp/127.0.0.1/9090) 2>/dev/null; then break; fi
  if ! kill -0 $server; then tail -n 5 server.log >&2; exit 1; fi
  sleep 0.2
done
"$2" -Dlogback.configurationFile=logging.xml -Xmx1g -cp "$3/*" "$4"
"""
"""The worker ends when its input does, and then the server."""


class Pravega(Peer):
    name = "Pravega"
    acknowledged = "the event is in the memory of one process: nothing is written to a disk"
    caveats = (
        "Standalone: its log and its storage are in memory, so there are no bytes on a disk. "
        "Its cache is 4 GiB, since the default stops the server when it is full.",
        "By its Java client: writer and reader are in one JVM, 16 writers are threads.",
        "Pravega with BookKeeper, which fsyncs, is not in this run.",
    )
    cannot: ClassVar[Mapping[str, str]] = {
        "stored": "standalone keeps everything in memory",
        "spark_write": _NO_SPARK,
        "spark_read": _NO_SPARK,
        "backlog": _NO_SPARK,
        "micro_batch": _NO_SPARK,
        "to_delta": "nothing copies its streams into Delta without a connector",
    }

    def start(self) -> None:
        jars = environments.pravega()
        if jars is None:
            raise Absent("its jars were not fetched: python -m bench.peers.environments")
        if shutil.which("unshare") is None or shutil.which("ip") is None:
            raise Absent("it needs a network namespace: unshare (util-linux) and ip (iproute2)")
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin/java")) if home else "java"
        folder = self.place.folder / "pravega"
        (folder / "config").mkdir(parents=True)
        (folder / "config/standalone-config.properties").write_text(_SETTINGS)
        (folder / "logging.xml").write_text(_LOGGING)
        command = ["unshare", "--map-root-user", "--net", "bash", "-c", _SCRIPT, "pravega"]
        try:
            self._worker = Worker(
                [*command, str(folder), java, str(jars), str(_WORKER)], folder / "worker.log"
            )
        except RuntimeError as error:
            raise Absent(f"it did not start: {error}") from error

    def stop(self) -> None:
        if "_worker" in self.__dict__:
            self._worker.close()

    def versions(self) -> str:
        return f"Pravega {environments.PRAVEGA}"

    def fill(self) -> None:
        self._filled = self._worker.ask(do="fill", file=str(events.plain(self.place)))

    def append(self, limit: Limit) -> Found:
        return quantiles(self._asked("append", limit))

    def end_to_end(self, limit: Limit) -> Found:
        return quantiles(self._asked("end_to_end", limit))

    def pipelined(self, limit: Limit) -> Found:
        return {"rate": self._asked("pipelined", limit)}

    def writers(self, limit: Limit) -> Found:
        times = self._asked("writers", limit)
        return load([[each / 1e3 for each in writer] for writer in times])

    def transaction(self, limit: Limit) -> Found:
        return quantiles(self._asked("transaction", limit))

    def catch_up(self, limit: Limit) -> Found:
        return {"rate": self._worker.ask(do="read", stream=self._filled, rows=self.place.rows)}

    def single_rows(self, limit: Limit) -> Found:
        found = self._asked("rows", limit)
        times = found["times"]
        return {
            "rows": len(times),
            "rate": 1e3 * len(times) / sum(times),
            "aggregate": found["aggregate"],
        }

    def idle(self, limit: Limit) -> Found:
        return servers.idle(servers.below(self._worker.process, _SERVER), limit)

    def _asked(self, name: str, limit: Limit) -> Any:
        return self._worker.ask(do=name, calls=limit.calls, seconds=limit.seconds)

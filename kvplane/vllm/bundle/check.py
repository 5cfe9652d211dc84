"""Starts the gateway and engines, asks, compares, looks at what the engines counted, and ends all that it has started.

    check.py BUNDLE WORK SIGNER KEEPER

is how run.sh calls it: the bundle's folder, one with tokens and keys that is removed at the end, and the private keys of tokens and
of the gateway's records. The settings are run.sh's. Standard library only.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import time

import ask
from processes import SIGNALS, Failed, Groups, deaf, free, stopped

SOURCES = ("external_kv_transfer", "local_compute", "local_cache_hit")
PAIR = ("prefill-0", "decode-0")
LEFT = ("vllm:kv_cache_usage_perc", "pdrouter_plane_held_blocks", "pdrouter_plane_pinned_blocks", "pdrouter_plane_quarantined_blocks")


class Trial:
    def __init__(self, bundle, work, signer, keeper):
        self.bundle, self.work, self.signer, self.keeper = pathlib.Path(bundle), pathlib.Path(work), signer, keeper
        env = os.environ.get
        self.vllm, self.device = env("VLLM", "vllm"), env("DEVICE", "cuda")
        self.transport = env("TRANSPORT", "nixl")
        self.model, self.dtype = env("MODEL", str(self.bundle / "model")), env("DTYPE", "float32")
        self.share, self.kv = env("GPU_MEMORY_UTILIZATION", "0.1"), env("KV_BYTES", str(256 << 20))
        self.more, self.logs = shlex.split(env("VLLM_ARGS", "")), env("LOGS", "")
        self.patience, self.requests = float(env("START_TIMEOUT", "900")), int(env("REQUESTS", "48"))
        self.margin = float(env("MARGIN", "0.01" if self.device == "cuda" else "0"))
        if self.device not in ("cuda", "cpu") or self.requests < 4:
            raise Failed("DEVICE is cuda or cpu, and REQUESTS at least 4")
        self.memory = {"cuda": "vram", "cpu": "dram"}[self.device]
        self.groups, self.problems, self.rows = Groups(self.work), [], []
        names = ("alone", *PAIR, "clients", "operations", "agents", *(n + " control" for n in PAIR))
        self.at = dict(zip(names, free(len(names))))  # base URLs

    def answers(self, url):
        try:
            ask.get(url)
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def timed(self, what):
        began = time.monotonic()
        print(f"... {what}", flush=True)
        yield
        self.rows.append((what, f"{time.monotonic() - began:.1f} s"))

    # Engines and the gateway.

    def engine(self, name, cpu, transfer=None):
        host, port = self.at[name].rsplit("/", 1)[1].split(":")
        argv = [self.vllm, "serve", self.model, "--served-model-name", ask.MODEL, "--host", host, "--port", port, "--dtype", self.dtype]
        argv += ["--max-model-len", "2048", "--max-num-seqs", "16", "--block-size", "32", "--enforce-eager"]
        if transfer:
            argv += ["--kv-transfer-config", json.dumps(transfer)]
        env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "XDG_CACHE_HOME": str(self.work / "cache")}
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, (str(self.bundle / "connector"), os.environ.get("PYTHONPATH"))))}
        env |= {"TORCHDYNAMO_DISABLE": "1"}  # else the first request for logprobs is compiled for, minutes in the CPU build
        if self.device == "cuda":
            argv += ["--gpu-memory-utilization", self.share] + (["--kv-cache-memory-bytes", self.kv] if self.kv else [])
            env |= {"TRITON_F32_DEFAULT": "ieee"}  # else kernels round what they multiply to 10 bits
        else:
            cpus = sorted(os.sched_getaffinity(0))
            env |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cpus[cpu % len(cpus)])}
        self.groups.start(name, argv + self.more, **{k: v for k, v in env.items() if k == "PYTHONPATH" or k not in os.environ})

    def healthy(self, *names):
        for name in names:
            self.groups.until(f"{name} is healthy", lambda: self.answers(self.at[name] + "/health"), self.patience)

    def member(self, name, cpu):
        role = name.split("-")[0]
        extra = {
            "engine": name, "gateway": self.at["agents"], "token_file": str(self.work / f"{name}.token"),
            "control": bare(self.at[name + " control"]), "control_keys": [public(self.signer)], "record_keys": [public(self.keeper)],
            "transport": self.transport,
        }  # fmt: skip
        transfer = {
            "kv_connector": "PdrouterConnector", "kv_connector_module_path": "pdrouter_vllm", "kv_buffer_device": self.device,
            "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}[role], "kv_connector_extra_config": extra,
        }  # fmt: skip
        self.engine(name, cpu, transfer)

    def gateway(self):
        prefill, decode = ([{"name": n, "url": self.at[n], "control": self.at[n + " control"]}] for n in PAIR)
        config = {
            "listen": {name: bare(self.at[name]) for name in ("clients", "operations", "agents")},
            "timeouts": dict.fromkeys(("request", "prefill", "transfer", "pair", "probe", "cleanup"), "180s") | {"request": "240s"},
            "models": [{"name": ask.MODEL, "connector": "kvplane", "prefill": prefill, "decode": decode}],
            "policy": {"default": {"policy": "roles"}},  # every prompt is split
            "auth": {
                "agents": {"keys": [public(self.signer)], "issuer": "pdrouter"},
                "records": {"key_file": self.keeper, "trusted": [public(self.keeper)]},
                "control_token_file": str(self.work / "gateway.token"),
            },
        }
        path = self.work / "gateway.yaml"  # JSON is YAML
        path.write_text(json.dumps(config, indent=1))
        self.groups.start("gateway", [str(self.bundle / "pdrouter"), "serve", "-c", str(path)])
        self.groups.until("the gateway listens", lambda: self.answers(self.at["operations"] + "/metrics"), 60)

    def pair(self):
        for cpu, name in enumerate(PAIR):
            self.member(name, cpu)
            if self.device == "cuda":
                self.healthy(name)  # at its start vLLM measures the GPU's memory, which nobody else may take meanwhile
        self.healthy(*PAIR)

    def splits(self):
        """Whether a request is served by both engines: so it is when they have shaken hands."""
        first = ask.Question("first", "/v1/completions", {"model": ask.MODEL, "prompt": ask.prose("first", 60), "max_tokens": 2})
        with contextlib.suppress(OSError, ValueError):
            return ask.ask(self.at["clients"], first).reason == "split"
        return False

    # What is seen.

    def expect(self, what, seen, ok, want=""):
        self.rows.append((what, f"{seen}" if ok else f"{seen}  <-- want {want}"))
        if not ok:
            self.problems.append(f"{what}: {seen}; want {want}")

    def metric(self, engine, name, label=""):
        """The sum of a metric's series that have the label; 0 where there is none."""
        series = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", ask.get(self.at[engine] + "/metrics"), re.MULTILINE)
        return sum(float(value) for labels, value in series if label in labels)

    def counted(self):
        p, d = PAIR
        out = {source: self.metric(d, "vllm:prompt_tokens_by_source_total", f'source="{source}"') for source in SOURCES}
        out["released"] = self.metric(d, "pdrouter_plane_transfers_total", 'ending="released"')
        out["freed"] = self.metric(p, "pdrouter_plane_transfers_total", 'ending="freed"')
        out["refused"] = sum(self.metric(e, "pdrouter_plane_refused_total") for e in PAIR)
        out["bytes"] = self.metric(p, "pdrouter_plane_written_bytes_total")
        return out

    def rests(self):
        return all(self.metric(e, name) == 0 for e in PAIR for name in LEFT)

    def rested(self):
        self.groups.until("no engine holds a block", self.rests, 60)

    def memories(self):
        """Where the engines say that their KV is, and over what it moves."""
        for name in PAIR:
            found = re.search(r"KV in (\w+), over (\w+)", (self.work / f"{name}.log").read_text(errors="replace"))
            want = f"{self.memory} over {self.transport}"
            seen = " over ".join(found.groups()) if found else "nothing"
            self.expect(f"{name}: KV", seen, seen == want, want)

    # The trial.

    def run(self):
        questions = ask.questions(self.requests)
        with self.timed("start one engine, alone"):
            self.engine("alone", 0)
            self.healthy("alone")
        with self.timed(f"its answers to {len(questions)} requests"):
            alone = [ask.ask(self.at["alone"], q) for q in questions]
        self.expect("its answers that differ", len({a.text for a in alone}), len({a.text for a in alone}) > len(alone) * 3 // 4, "most")
        self.groups.stop("alone")
        with self.timed("start the gateway, prefill and decode"):
            self.gateway()
            self.pair()
        with self.timed("the first request that both serve"):
            self.groups.until("a request is served by both engines", self.splits, 180)
        self.memories()
        self.rested()
        before = self.counted()
        with self.timed(f"the same {len(questions)} requests by both, four at a time"), concurrent.futures.ThreadPoolExecutor(4) as pool:
            split = list(pool.map(self.tried, questions))
        self.rested()
        self.compared(questions, alone, split)
        self.moved(before, self.counted(), alone)
        self.rows.append(("blocks in use, held, pinned, in quarantine", "0"))  # else rested would have failed
        self.control(questions[0])

    def tried(self, question):
        try:
            return ask.ask(self.at["clients"], question)
        except (OSError, ValueError) as err:
            return ask.Answer(text=f"no answer: {err}")

    def compared(self, questions, alone, split):
        found = [ask.compare(a, s, self.margin) for a, s in zip(alone, split)]
        for question, (verdict, why) in zip(questions, found):
            if verdict != ask.SAME:
                print(f"    {verdict}: {question.name}: {why}")
        count = {verdict: sum(v == verdict for v, _ in found) for verdict in (ask.SAME, ask.TIE, ask.OTHER)}
        self.expect("answers equal to one engine's", f"{count[ask.SAME]} of {len(found)}", count[ask.OTHER] == 0, "all")
        if self.margin:
            n = count[ask.TIE]
            self.expect(f"that part where two tokens were within {self.margin} nats", n, n * 4 <= len(found), "at most a quarter")
        both = sum(s.reason == "split" for s in split)
        self.expect("served by prefill and decode", f"{both} of {len(split)}", both == len(split), "all")

    def moved(self, before, after, alone):
        grew = {name: int(after[name] - before[name]) for name in after}
        n, prompts = len(alone), sum(a.prompt_tokens for a in alone)
        self.expect("decode's prompt tokens, external_kv_transfer", grew[SOURCES[0]], grew[SOURCES[0]] == prompts, prompts)
        for source in SOURCES[1:]:
            self.expect(f"decode's prompt tokens, {source}", grew[source], grew[source] == 0, 0)
        for name, want in (("released", n), ("freed", n), ("refused", 0)):
            self.expect(f"transfers {name}", grew[name], grew[name] == want, want)
        self.expect("bytes of KV written", grew["bytes"], grew["bytes"] > 0, "more than 0")

    def control(self, question):
        """What decode computes itself does show in the counter that stayed at 0."""
        before = self.counted()["local_compute"]
        ask.ask(self.at[PAIR[1]], ask.Question("control", question.path, question.body | {"prompt": ask.prose("control", 90)}))
        self.groups.until("the control is counted", lambda: self.counted()["local_compute"] > before, 30)
        self.rows.append(("control: local_compute when decode is asked alone", int(self.counted()["local_compute"] - before)))

    def tell(self):
        width = max((len(name) for name, _ in self.rows), default=0)
        print()
        for name, seen in self.rows:
            print(f"{name:<{width}}  {seen}")
        if self.logs:
            shutil.copytree(self.work, self.logs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("agents", "records", "*.token", "cache", "lib"))
        elif self.problems:
            for log in sorted(self.work.glob("*.log")):
                print(f"\n== the end of {log.name} (LOGS=folder keeps them whole)")
                print("\n".join(log.read_text(errors="replace").splitlines()[-25:]))


def bare(url):
    return url.rsplit("/", 1)[1]


def public(key):
    return key.removesuffix(".jwk") + ".pub.jwk"


def main():
    trial, began = None, time.monotonic()
    for s in SIGNALS:
        signal.signal(s, stopped)
    problems = []
    try:
        trial = Trial(*sys.argv[1:])
        problems = trial.problems
        print(f"trial:    {trial.requests} requests, DEVICE={trial.device}, TRANSPORT={trial.transport}, DTYPE={trial.dtype}, {trial.model}\n")
        trial.run()
    except Exception as err:
        problems.append(str(err) if isinstance(err, Failed) else f"{type(err).__name__}: {err}")
    finally:
        deaf()
        if trial:
            trial.groups.end()
            trial.tell()
        shutil.rmtree(sys.argv[2], ignore_errors=True)
    print(f"\n{time.monotonic() - began:.0f} s")
    print("FAIL: " + "; ".join(problems) if problems else "PASS")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

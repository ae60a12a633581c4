"""A stand-in for vLLM, where it is not installed, and a server whose workers take weights by HTTP.

It has the classes, the phases and the routes of vLLM's weight transfer; test_vllm.py uses it.
"""

import abc
import contextlib
import dataclasses
import http.server
import json
import sys
import threading
import types
import urllib.error
import urllib.request

import torch

# What vLLM calls, and how: the parameters of the methods that an engine may define.
SIGNATURES = {
    "WeightTransferEngine": {
        "__init__": "self, config, vllm_config, device, model",
        "init_transfer_engine": "self, init_info",
        "start_weight_update": "self",
        "receive_weights": "self, update_info",
        "finish_weight_update": "self",
        "shutdown": "self",
    },
    "TrainerWeightTransferEngine": {
        "__init__": "self, *, client, source=, is_sender=",
        "trainer_init": "init_info, *, client, source=",
        "send_weights": "self",
        "shutdown": "self",
    },
}
BASE = "vllm.distributed.weight_transfer.base"
FACTORY = "vllm.distributed.weight_transfer.factory"
RELOAD = "vllm.model_executor.model_loader.reload"


@dataclasses.dataclass
class InitInfo(abc.ABC):
    pass


@dataclasses.dataclass
class UpdateInfo(abc.ABC):
    pass


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


class Engine(abc.ABC):
    supports_draft_weight_update = True

    def __init__(self, config, vllm_config, device, model):
        self.config, self.device, self.model = config, device, model
        self.model_config = vllm_config.model_config

    def _parse(self, kind, fields):
        try:
            return kind(**fields)
        except TypeError as e:
            raise ValueError(f"{kind.__name__}: {e}") from e

    def parse_init_info(self, init_dict):
        return self._parse(self.init_info_cls, init_dict)

    def update_weights(self, update_info):
        self.receive_weights(self._parse(self.update_info_cls, update_info))

    @abc.abstractmethod
    def init_transfer_engine(self, init_info): ...

    @abc.abstractmethod
    def start_weight_update(self): ...

    @abc.abstractmethod
    def receive_weights(self, update_info): ...

    @abc.abstractmethod
    def finish_weight_update(self): ...

    @abc.abstractmethod
    def shutdown(self): ...


class TrainerEngine(abc.ABC):
    def __init__(self, *, client, source=None, is_sender=True):
        self.client, self.source, self.is_sender = client, source, is_sender

    @classmethod
    @abc.abstractmethod
    def trainer_init(cls, init_info, *, client, source=None): ...

    @abc.abstractmethod
    def send_weights(self): ...

    def shutdown(self): ...


def factory():
    class Factory:
        engines = {}

        @classmethod
        def register_engine(cls, name, engine, class_name=None):
            if name in cls.engines:
                raise ValueError(f"{name} is registered already")
            cls.engines[name] = engine

    return Factory


@contextlib.contextmanager
def installed():
    """Has programs import the stand-in as vLLM."""
    before = dict(sys.modules)
    names = {".".join(n.split(".")[:i]) for n in (BASE, FACTORY, RELOAD) for i in range(1, 5)}
    for name in sorted(names):
        sys.modules[name] = types.ModuleType(name)
    for name, made in {
        "WeightTransferInitInfo": InitInfo,
        "WeightTransferUpdateInfo": UpdateInfo,
        "TrainerInitInfo": TrainerInitInfo,
        "WeightTransferEngine": Engine,
        "TrainerWeightTransferEngine": TrainerEngine,
    }.items():
        setattr(sys.modules[BASE], name, made)
    for name in ("WeightTransferEngineFactory", "WeightTransferTrainerFactory"):
        setattr(sys.modules[FACTORY], name, factory())
        setattr(sys.modules["vllm.distributed.weight_transfer"], "factory", sys.modules[FACTORY])
    sys.modules[RELOAD].initialize_layerwise_reload = lambda model: model.events.append("start")
    sys.modules[RELOAD].finalize_layerwise_reload = lambda model, config: model.events.append(
        config
    )
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update({n: m for n, m in before.items() if n in names})


# ---- A server ----


class Model(torch.nn.Module):
    """Has the published tensors under other names, in one."""

    def __init__(self):
        super().__init__()
        self.loaded, self.events = {}, []

    def load_weights(self, weights):
        for name, tensor in weights:
            self.loaded[name] = tensor.clone()


class Worker:
    """Keeps the order of the phases, as a worker of vLLM does."""

    def __init__(self, engine):
        self.model, self.active = Model(), False
        config = types.SimpleNamespace(model_config="finish", parallel_config=None)
        self.engine = engine(None, config, torch.device("cpu"), self.model)

    def init_weight_transfer_engine(self, body):
        self.engine.init_transfer_engine(self.engine.parse_init_info(body["init_info"]))

    def start_weight_update(self, body):
        assert not self.active, "an update is under way"
        self.engine.start_weight_update()
        self.active = True

    def update_weights(self, body):
        assert self.active, "no update is under way"
        try:
            self.engine.update_weights(body["update_info"])
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self, body):
        assert self.active, "no update is under way"
        self.engine.finish_weight_update()
        self.active = False


class Server:
    """Two workers behind HTTP, by a thread for each request."""

    def __init__(self, engine):
        self.workers = [Worker(engine), Worker(engine)]
        self.requests, self.version, self.paused = [], "default", False
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, owner.get(self.path))

            def do_POST(self):
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    self.answer(200, owner.post(self.path, json.loads(data or b"{}")))
                except Exception as e:
                    self.answer(500, {"error": f"{type(e).__name__}: {e}"})

            def answer(self, status, body):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_): ...

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self.thread.start()

    def get(self, path):
        return {
            "/weight_info": {"weight_version": self.version},
            "/get_world_size": {"world_size": len(self.workers)},
        }[path]

    def post(self, path, body):
        self.requests.append((path, body))
        if path in ("/pause", "/resume"):
            self.paused = path == "/pause"
            return {}
        for worker in self.workers:
            getattr(worker, path[1:])(body)
        if path == "/finish_weight_update":
            self.version = body.get("weight_version") or self.version
        return {}

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
        for worker in self.workers:
            worker.engine.shutdown()


class SyncClient:
    """Sends the phases to a server, as vLLM's client for HTTP does."""

    def __init__(self, url, timeout=60):
        self.url, self.timeout = url, timeout

    def post(self, path, body=None):
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(body or {}).encode(), method="POST"
        )
        try:
            urllib.request.urlopen(request, timeout=self.timeout).close()
        except urllib.error.HTTPError as e:
            raise RuntimeError(json.load(e)["error"]) from None

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=self.timeout) as answer:
            return json.load(answer)

    def init_weight_transfer_engine(self, init_info):
        self.post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self):
        self.post("start_weight_update")

    def update_weights(self, update_info):
        self.post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version=None):
        self.post("finish_weight_update", {"weight_version": weight_version})

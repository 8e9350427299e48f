"""The models of the YAML files: what may stand in `config/gateway.yaml` and in a route file.

Knows shapes, defaults and units. Does not know files, lines or the environment: that is `loader.py`.
Keys that this version does not serve are absent here, so that they are refused instead of being ignored.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from gateway.chat.schemas.dialect import SchemaDialect
from gateway.config.approvals import ApprovalsConfig, OnFailure
from gateway.config.context import ContextConfig, RouteContextConfig
from gateway.config.http_tools import HttpServiceConfig
from gateway.config.limits import (
    Budgets,
    CallerBudgets,
    CallerLimits,
    Limits,
    Money,
    OidcConfig,
    PriceConfig,
    Role,
    TeamConfig,
)
from gateway.config.mcp_servers import McpServerConfig
from gateway.config.privacy import PrivacyConfig, RoutePrivacy
from gateway.config.runs import RunsConfig, WebhookConfig
from gateway.config.section import Name, NonEmpty, Section, no_truth_value

# A model's name may hold one `*`, which stands for one character or more.
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._/:*-]{0,63}$")]

# A host's name, in whatever script, with one character at least that no address has.
_HOST = re.compile(r"(?=.*[^\d.])[^\s/:@?#*\[\]]+")
_HOST_GLOB = re.compile(r"(?![^:]*:\d+$)[^\s/@#]+")

# Request fields that the gateway itself decides about; `params` may not name them.
RESERVED_PARAMS = frozenset({"model", "messages", "stream", "stream_options", "n", "tools", "tool_choice"})


def _free_params(value: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(RESERVED_PARAMS & value.keys())
    if taken:
        raise ValueError(f"`{taken[0]}` is not a parameter: the gateway decides about it")
    return value


Params = Annotated[dict[str, Any], AfterValidator(_free_params)]


# What routes are compared by, and how far ahead of the second the best one is.
Score = Annotated[float, BeforeValidator(no_truth_value), Field(ge=-1, le=1)]
Margin = Annotated[float, BeforeValidator(no_truth_value), Field(ge=0, le=2)]


class ServerConfig(Section):
    """Where the gateway listens and what it accepts."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    body_limit_mb: float = Field(default=20, gt=0, description="Largest request body, in MiB.")
    trusted_proxies: tuple[NonEmpty, ...] = Field(
        default=(), description="Addresses and networks of proxies whose word on the client's address counts."
    )
    turn_timeout_s: float = Field(default=300, gt=0)
    drain_s: float = Field(default=30, ge=0)

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ipaddress.ip_network(each)
            except ValueError as error:
                raise ValueError(f"{each!r} is no address and no network such as 10.0.0.0/8") from error
        return value


class StorageConfig(Section):
    """Where records live."""

    database: NonEmpty = "sqlite:///data/hermes.db"
    redis: NonEmpty | None = Field(default=None, repr=False)
    redis_prefix: NonEmpty = "hermes:"

    @field_validator("redis")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"^(rediss?|unix)://.", value):
            raise ValueError("it must start with redis://, rediss:// or unix://")
        return value


class ReplicaConfig(Section):
    """How versions come into service, here and over replicas."""

    watch: bool = False
    revision: int | None = Field(default=None, ge=0)
    lease_s: float = Field(default=15, ge=1, le=300)
    on_lease_loss: Literal["serve", "refuse"] = "serve"


# Providers with an adapter of their own; every other name is litellm's.
_OWN_PROVIDERS = ("demo", "llamacpp", "plugin", "openai", "ollama", "vllm", "lmstudio", "anthropic")


class Capabilities(Section):
    """What a backend's model can do. A request that needs something else is not sent there."""

    tools: bool = True
    vision: bool = True
    json_schema: bool = True
    system_anywhere: bool = Field(
        default=True, description="`false`: one system message, in front; others are joined to it."
    )
    developer_role: bool = Field(default=True, description="`false`: `developer` messages are sent as `system`.")
    alternation: bool = Field(
        default=False, description="`true`: users and assistants take turns; messages of one in a row are joined."
    )


class BackendConfig(Section):
    """One upstream that serves one model."""

    provider: Name
    model: NonEmpty | None = None
    base_url: NonEmpty | None = None
    api_key: NonEmpty | None = Field(default=None, repr=False)
    api_keys: tuple[NonEmpty, ...] = Field(default=(), repr=False)
    module: NonEmpty | None = Field(default=None, description="Python file or module of a `plugin` backend.")
    path: NonEmpty | None = Field(default=None, description="GGUF file of a `llamacpp` backend.")
    threads: int | None = Field(
        default=None, ge=1, le=512, description="Threads a `llamacpp` backend computes with; half the cores by default."
    )
    dialect: Literal["openai", "compatible"] | None = Field(
        default=None,
        description="`openai`: streams are relayed byte for byte. Default: `openai` for OpenAI itself, else `compatible`.",
    )
    params: Params = Field(default_factory=dict)
    drop_params: tuple[str, ...] = ()
    map_params: dict[NonEmpty, NonEmpty] = Field(
        default_factory=dict, description="Request fields this server knows by another name, and that name."
    )
    send_reasoning: Literal["auto", "off", "reasoning_content", "reasoning"] = Field(
        default="auto", description="The field in which a model gets the thoughts behind its earlier calls back."
    )
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout_s: float = Field(default=120, gt=0)
    first_token_timeout_s: float = Field(default=60, gt=0)
    idle_timeout_s: float = Field(default=60, gt=0)
    max_concurrency: int | None = Field(default=None, ge=1)
    context_tokens: int | None = Field(default=None, ge=1)
    capabilities: Capabilities = Capabilities()
    tool_schemas: SchemaDialect | None = Field(
        default=None,
        description="The dialect of JSON Schema that tools are described in; by default what suits the provider.",
    )
    price: PriceConfig | Literal["free"] | None = Field(
        default=None, description="What tokens cost. Default: what the price list of litellm says."
    )

    @field_validator("provider")
    @classmethod
    def _spelt(cls, value: str) -> str:
        # litellm knows a hundred more, and knows which only once it is loaded; a slip of the pen is seen without it.
        near = difflib.get_close_matches(value, _OWN_PROVIDERS, n=1, cutoff=0.85)
        if near and near[0] != value:
            raise ValueError(f"unknown provider {value!r}; did you mean `{near[0]}`?")
        return value

    @model_validator(mode="after")
    def _decides(self) -> BackendConfig:
        """What the gateway decides about is not the operator's to rename or drop; what would do nothing is refused."""
        if taken := sorted(RESERVED_PARAMS & {*self.map_params, *self.map_params.values()}):
            raise ValueError(f"`map_params` may not name `{taken[0]}`: the gateway decides about it")
        if taken := sorted({"model", "messages", "stream"}.intersection(self.drop_params)):
            raise ValueError(f"`drop_params` may not name `{taken[0]}`: no request goes without it")
        if self.provider in ("demo", "plugin"):
            if self.map_params:
                raise ValueError(
                    f"`map_params` is for servers: `provider: {self.provider}` gets every field as it came"
                )
            if self.send_reasoning != "auto":
                raise ValueError(f"`send_reasoning` is for servers: `provider: {self.provider}` has no use for it")
        if self.drop_params and self.provider == "demo":
            raise ValueError("`drop_params` is for servers: `provider: demo` gets every field as it came")
        return self

    @model_validator(mode="after")
    def _needs(self) -> BackendConfig:
        if self.provider == "plugin":
            if self.module is None:
                raise ValueError("a backend with `provider: plugin` needs `module`")
        elif self.provider == "llamacpp":
            if self.path is None:
                raise ValueError("a backend with `provider: llamacpp` needs `path`")
            if self.base_url is not None or self.keys:
                raise ValueError("a backend with `provider: llamacpp` has its own server: no `base_url`, no `api_key`")
        elif self.provider != "demo" and self.model is None:
            raise ValueError("`model` is missing: the name of the model at this backend")
        if self.provider != "llamacpp" and (self.path is not None or self.threads is not None):
            raise ValueError("`path` and `threads` are for `provider: llamacpp`")
        return self

    @model_validator(mode="after")
    def _reached(self) -> BackendConfig:
        if self.base_url is not None and not re.match(r"^https?://[^/\s]+", self.base_url):
            raise ValueError("`base_url` must start with http:// or https://")
        if self.api_key is not None and self.api_keys:
            raise ValueError("`api_key` and `api_keys` exclude each other")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key of this backend, however it was written."""
        return self.api_keys or ((self.api_key,) if self.api_key else ())


class CacheConfig(Section):
    """Whether equal requests are answered once. `shared`: over all owners, else each has its own."""

    ttl_s: float = Field(default=300, ge=0, le=7 * 86_400, description="Seconds an answer is given again; 0: never.")
    shared: bool = False


class PoolMember(Section):
    """A backend inside a model."""

    name: Name
    weight: float = Field(default=1, ge=0)


Balance = Literal["ordered", "weighted", "least_busy", "fastest"]


class ModelConfig(Section):
    """A name clients may ask for: a pool of backends, and the models that stand in for it."""

    backends: Annotated[tuple[PoolMember, ...], Field(min_length=1)]
    balance: Balance = "ordered"
    retries: int = Field(default=1, ge=0, le=10)
    fallbacks: tuple[Name, ...] = ()
    tool_model: Name | None = Field(
        default=None, description="The model that is asked as long as tools may be called; the model itself answers."
    )
    answer_model: Name | None = Field(default=None, description="The model that writes the answer, without tools.")
    escalate: Name | None = Field(
        default=None, description="The model that goes on once arguments of the same tool have failed twice."
    )
    tools: tuple[NonEmpty, ...] | None = None
    cache: CacheConfig | None = None
    limits: Limits = Limits()

    @field_validator("backends", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [{"name": item} if isinstance(item, str) else item for item in value]
        return value


class RemoteEncoderConfig(Section):
    """A model behind an OpenAI-protocol `/v1/embeddings` endpoint."""

    base_url: NonEmpty = Field(repr=False)
    model: NonEmpty
    api_key: NonEmpty | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    dimensions: int | None = Field(default=None, ge=1, le=16384)
    timeout_s: float = Field(default=30, gt=0)

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not re.match(r"^https?://[^/\s]+", value):
            raise ValueError("it must start with http:// or https://")
        return value


class SemanticConfig(Section):
    """How example utterances decide."""

    enabled: bool = True
    encoder: RemoteEncoderConfig | NonEmpty = "auto"
    threshold: Score | Literal["auto"] = "auto"
    margin: Margin | Literal["auto"] = "auto"
    none: tuple[NonEmpty, ...] = Field(default=(), description="Utterances that belong to no route.")
    timeout_ms: float = Field(default=200, gt=0)
    cache_ttl_s: float = Field(default=300, gt=0)
    cache_size: int = Field(default=10_000, gt=0)


class RouterConfig(Section):
    """Which name asks the router, and what happens when no route matches."""

    model: Name = "auto"
    default: Name
    semantic: SemanticConfig = SemanticConfig()
    sticky: bool = False


class OutboundConfig(Section):
    """Which addresses tools may reach."""

    allow_private: tuple[NonEmpty, ...] = ()
    allow_domains: tuple[NonEmpty, ...] = ("*",)
    per_domain: int = Field(default=2, ge=1, le=1000)
    total: int = Field(default=10, ge=1, le=1000)

    @field_validator("allow_private")
    @classmethod
    def _places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ipaddress.ip_network(entry, strict=False)
            except ValueError:
                if not _HOST.fullmatch(entry):
                    raise ValueError(f"{entry!r} is no host name, address or network (CIDR)") from None
        return value

    @field_validator("allow_domains")
    @classmethod
    def _domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if not _HOST_GLOB.fullmatch(entry):
                raise ValueError(f"{entry!r} is no host name, nor a glob over one: no scheme, port or path")
        return value


class ToolLimitConfig(Section):
    """How much one tool is used, by everybody together."""

    concurrency: int | None = Field(default=None, ge=1)
    per_min: int | None = Field(default=None, ge=1)


class ExtractConfig(Section):
    """Who condenses long results against the question, and from which size on."""

    model: Name | None = None
    over_bytes: int = Field(default=32_768, ge=1024)


class ToolsConfig(Section):
    """Which tools exist and how they are offered and run."""

    plugins: tuple[NonEmpty, ...] = ("plugins",)
    mcp: dict[Name, McpServerConfig] = Field(default_factory=dict)
    http: dict[Name, HttpServiceConfig] = Field(default_factory=dict)
    offer: Literal["routed", "always"] = "routed"
    default: tuple[NonEmpty, ...] = ()
    max_offered: int = Field(default=32, ge=1)
    max_rounds: int = Field(default=5, ge=0, le=100)
    max_turn_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that all model calls of one turn together may take."
    )
    max_turn_cost: Money | None = Field(
        default=None, description="Money, in `budgets.currency`, that all model calls of one turn together may cost."
    )
    timeout_s: float = Field(default=10, gt=0)
    retries: int = Field(default=3, ge=0, le=10)
    backoff_s: float = Field(default=0.5, ge=0, le=60)
    breaker_failures: int = Field(default=5, ge=1)
    limits: dict[Name, ToolLimitConfig] = Field(default_factory=dict)
    max_result_bytes: int = Field(default=8192, ge=256)
    extract: ExtractConfig = ExtractConfig()
    outbound: OutboundConfig = OutboundConfig()


HeaderName = Annotated[str, AfterValidator(str.lower), StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]


class StaticKey(Section):
    """A key that stands in the configuration itself."""

    key: NonEmpty = Field(repr=False)
    team: Name | None = None
    roles: tuple[Role, ...] = ()
    tags: tuple[NonEmpty, ...] = ()
    models: tuple[NonEmpty, ...] | None = None
    routes: tuple[NonEmpty, ...] | None = None
    tools: tuple[NonEmpty, ...] | None = None
    limits: Limits = Limits()
    budgets: Budgets = Budgets()


class KeysConfig(Section):
    """Who may call."""

    auth: Literal["auto", "required"] = "auto"
    admin_key: NonEmpty | None = Field(default=None, repr=False)
    static: dict[Name, StaticKey] = Field(default_factory=dict)
    user_headers: tuple[HeaderName, ...] = ()
    session_headers: tuple[HeaderName, ...] = ()
    oidc: OidcConfig | None = None


class LogConfig(Section):
    """How the gateway logs. `auto`: lines for people on a terminal, JSON elsewhere."""

    format: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: bool = False


class TracesConfig(Section):
    """What is kept of each turn, and for how long."""

    content: Literal["masked", "none"] = "masked"
    keep_days: float = Field(default=14, gt=0)
    max_mb: float = Field(default=2048, gt=0)
    sample: float = Field(default=1.0, ge=0, le=1)


class ObserveConfig(Section):
    """Logs and traces."""

    log: LogConfig = LogConfig()
    traces: TracesConfig = TracesConfig()


class IdempotencyConfig(Section):
    """Requests that are sent again."""

    ttl_s: float = Field(default=86400, gt=0, description="How long an `Idempotency-Key` is known.")
    join_sdk_retries: bool = Field(
        default=True, description="Whether a request that its SDK marks as a retry joins the turn of the first."
    )


class GatewayConfig(Section):
    """The whole of `config/gateway.yaml`."""

    server: ServerConfig = ServerConfig()
    storage: StorageConfig = StorageConfig()
    config: ReplicaConfig = ReplicaConfig()
    backends: Annotated[dict[Name, BackendConfig], Field(min_length=1)]
    models: Annotated[dict[ModelName, ModelConfig], Field(min_length=1)]
    aliases: dict[Name, Name] = Field(default_factory=dict)
    router: RouterConfig
    tools: ToolsConfig = ToolsConfig()
    keys: KeysConfig = KeysConfig()
    teams: dict[Name, TeamConfig] = Field(default_factory=dict)
    limits: CallerLimits = CallerLimits()
    budgets: CallerBudgets = CallerBudgets()
    idempotency: IdempotencyConfig = IdempotencyConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    approvals: ApprovalsConfig = ApprovalsConfig()
    on_failure: OnFailure | None = Field(
        default=None,
        description="What happens to completed effects when a later step fails; `keep` in requests, `compensate` in runs.",
    )
    context: ContextConfig = ContextConfig()
    runs: RunsConfig = RunsConfig()
    observe: ObserveConfig = ObserveConfig()
    webhooks: dict[Name, WebhookConfig] = Field(default_factory=dict)


class When(Section):
    """Facts a route asks for: every key has to hold, one of its values suffices."""

    tags: tuple[NonEmpty, ...] = ()
    has_tools: bool | None = None
    has_image: bool | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=0)
    language: tuple[NonEmpty, ...] = ()
    models: tuple[NonEmpty, ...] = ()

    @field_validator("tags", "language", "models", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class FixedThreshold(Section):
    """A threshold someone chose, and the encoder it was chosen for."""

    value: Score
    encoder: NonEmpty


class RouteConfig(Section):
    """One file under `routes/`."""

    route: Name
    title: str | None = None
    owner: str | None = None
    model: Name
    priority: int = 0
    keywords: tuple[NonEmpty, ...] = ()
    patterns: tuple[NonEmpty, ...] = ()
    all_of: tuple[NonEmpty, ...] = ()
    none_of: tuple[NonEmpty, ...] = ()
    when: When | None = None
    match: Literal["when"] | None = None
    utterances: tuple[NonEmpty, ...] = ()
    threshold: FixedThreshold | None = None
    tools: tuple[NonEmpty, ...] | None = None
    params: Params = Field(default_factory=dict)
    system: str | None = None
    max_rounds: int | None = Field(default=None, ge=0, le=100)
    max_turn_tokens: int | None = Field(default=None, ge=1)
    max_turn_cost: Money | None = None
    tool_choice: Literal["auto", "required", "none"] | None = None
    cache: CacheConfig | None = Field(default=None, description="Instead of the model's.")
    on_failure: OnFailure | None = Field(default=None, description="Instead of the configuration's.")
    limits: Limits = Limits()
    privacy: RoutePrivacy | None = Field(default=None, description="Laid over the gateway's.")
    context: RouteContextConfig = RouteContextConfig()

    @model_validator(mode="after")
    def _can_match(self) -> RouteConfig:
        has_rule = bool(self.keywords or self.patterns)
        if self.match == "when" and self.when is None:
            raise ValueError("`match: when` needs `when`")
        if not has_rule and self.match is None and not self.utterances:
            raise ValueError("a route needs `keywords` or `patterns`, or `utterances`, or `when` with `match: when`")
        if self.all_of and not has_rule:
            raise ValueError("`all_of` needs `keywords` or `patterns` beside it")
        if self.threshold is not None and not self.utterances:
            raise ValueError("`threshold` needs `utterances`: it is the score that they have to reach")
        return self

"""The sections about DIAL: deployments as tools, what users may make of the agent there, and their files."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from task.settings.values import Listed, Section, Texts, setting


class DeploymentToolSettings(Section):
    """One DIAL deployment that the agent's model may call as a tool; of one by its name alone Core says the rest."""

    name: str = Field(default="", pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str = Field(default="", min_length=1)
    deployment: str = Field(min_length=1)
    prompt: str = Field(default="prompt", pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    arguments: dict[str, dict[str, Any]] = Field({})
    configuration: dict[str, Any] = Field({})
    attachments: list[str] = Field([])
    seconds: float = Field(default=120, gt=0, le=3600)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"deployment": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _arguments_are_schemas(self) -> Self:
        if not (self.name and self.description) and self.model_fields_set != {"deployment"}:
            raise ValueError(f"{self.deployment}: give it a `name` and a `description`, or nothing but its own name")
        if taken := {self.prompt, "file_urls"} & self.arguments.keys():
            raise ValueError(f"{self.name}: the argument {min(taken)} has another meaning already")
        if self.arguments:
            from jsonschema import Draft202012Validator, SchemaError

            try:
                Draft202012Validator.check_schema({"type": "object", "properties": self.arguments})
            except SchemaError as error:
                raise ValueError(f"{error.json_path} is not a JSON Schema: {error.message}") from None
        return self


class DeploymentSettings(Section):
    """DIAL deployments that serve the agent as tools."""

    image: str = setting("dall-e-3", "Deployment behind `image_generation_tool`; `off`: no pictures.", min_length=1)
    image_seconds: float = setting(180, "Seconds one picture may take.", gt=0, le=3600)
    tools: Annotated[list[DeploymentToolSettings], Listed] = setting(
        [], "Further deployments as tools, names or a list of mappings; see [Tools](tools.md#deployments-as-tools)."
    )


class ApplicationLimits(Section):
    """How far one run of an application may go; of the settings the most, empty: as `limits`."""

    steps: int | None = setting(None, "Model requests with tools.", ge=1, le=1000)
    run_seconds: float | None = setting(None, "Seconds with all calls.", gt=0)
    run_tokens: int | None = setting(None, "Tokens.", ge=1)


class ApplicationSettings(Section):
    """What users may make of the agent in DIAL; see [The DIAL door](dial.md#agents-made-in-chat)."""

    tools: Texts | None = setting(None, "Deployments, toolsets and own tools, with `*` and `?`; not set: the caller's.")
    models: Texts | None = setting(None, "Models, likewise.")
    skills: Texts | None = setting(None, "Skills by address, `skills/{bucket}/{path}`, likewise.")
    from_request: bool = setting(False, "Believe properties that requests bring, where Core alone reaches the port.")
    limits: ApplicationLimits = ApplicationLimits()


class DialFilesSettings(Section):
    """The tools for the user's own files in DIAL; see [Tools](tools.md#the-users-files-in-dial)."""

    enabled: bool = setting(False, "Offer them always; off: where a folder is attached or an application names one.")

"""FrameworkController: the console's parts, its loop, and the way of a message through a turn."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from task.closing import run_blocking
from task.console.attachments import AttachedFile, attach, mentioned, message_with, saved
from task.console.configuration import ConfigurationManager
from task.console.conversation import OWNER, Conversation, decided, load_state, save_state
from task.console.error_handler import ErrorHandler
from task.console.sign_in import sign_in
from task.console.slash.completion import complete
from task.console.slash.picks import pick, resources_in
from task.console.slash.table import COMMANDS, find_command
from task.console.ui_manager import UserInterfaceManager
from task.conversation.inputs import Answer
from task.conversation.message_manager import MessageManager
from task.conversation.messages import Attachment, Message, Role
from task.errors import AgentError, ComponentInitError, Conflict, InvalidRequest, NotFound
from task.product.framework import ConsoleProduct, console_product
from task.runs.request import RunCaller
from task.runs.runner import Runner
from task.tools.mcp.mcp_tool import SIGN_IN

WELCOME = "{name} started. Type /help for available commands."
GOODBYE = "Goodbye."
AGAIN = " This conversation continues with: dial-agent chat --resume {session}"
SHOWN = 40  # messages of a session that is continued
INTERRUPTED = "The last answer was interrupted. Say how to continue."
DELETED = "This conversation was deleted elsewhere. /clear starts another one."
NOT_READY = "FrameworkController.initialize() comes first."
NO_TURN = "{name} waits until the answer is complete; Ctrl-C stops it."
NO_TERMINAL = "no user is at a terminal to approve it"
STAYS_OPEN = "The question stays open: `approve {codes}` or `deny {codes}` answers it."


class FrameworkController:
    """Orchestrates the console. Source: framework reference, Framework Controller.

    `ui` replaces the terminal; `notes` are shown once, when a user at a terminal starts to chat. `attached` files go
    with the next message; `answering` is whether a turn is running, `failed` whether the last input went wrong.
    """

    def __init__(self, config_manager: ConfigurationManager, *, ui: UserInterfaceManager | None = None) -> None:
        self.config, self.folder = config_manager, Path.cwd()
        self._state_file = config_manager.settings.console.state_file
        self.ui = ui or UserInterfaceManager(config_manager.get_ui_settings())
        self.errors = ErrorHandler()
        self.notes: list[str] = []
        self.attached: list[AttachedFile] = []
        self.answering = self.failed = False
        self.history = MessageManager()
        self._conversation: Conversation | None = None
        self._ready = self._ended = False
        self._mirrored = 0  # messages of the session that the history has

    @property
    def conversation(self) -> Conversation:
        """Raises ComponentInitError before `initialize`."""
        if self._conversation is None:
            raise ComponentInitError(NOT_READY)
        return self._conversation

    @property
    def product(self) -> ConsoleProduct:
        return self.conversation.product

    @property
    def caller(self) -> RunCaller:
        return self.conversation.caller

    @property
    def session_id(self) -> str | None:
        """The session of the conversation; None before the first message."""
        return self.conversation.session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        session = self.conversation.session(session_id)
        self.conversation.session_id, self.conversation.last = session_id, None
        self._mirrored = session.length if session is not None else 0

    def initialize(self) -> bool:
        """Initialise all components; what fails is one line, and the result False."""
        try:
            self._ready = self._initialize_dcm() and self._initialize_lial() and self._initialize_teps()
            self._setup_initial_context()
        except AgentError as error:
            self._ready = False
            self._report("Initialization Error", error)
        return self._ready

    def run(self) -> None:
        """The interaction loop, until `/quit`, or the end of the input.

        Raises:
            ComponentInitError: `initialize` was not called, or it failed.
        """
        if not self._ready:
            raise ComponentInitError(NOT_READY)
        console, interactive = self.config.settings.console, self.ui.interactive
        if interactive:
            name = " ".join(filter(None, (console.name, console.version)))
            for line in (WELCOME.format(name=name), *self.notes):
                self.ui.display_system_message(line)
        with suppress(EOFError, KeyboardInterrupt):  # of the input, which they end
            while not self._ended:
                text = self.ui.get_user_input()
                with suppress(KeyboardInterrupt):  # it ends what was under way
                    self.take(text)
        if interactive:
            again = AGAIN.format(session=self.session_id) if self.session_id else ""
            self.ui.display_system_message(GOODBYE + again)

    def take(self, text: str) -> None:
        """One input: nothing, a command, or a message. What goes wrong is shown."""
        text = text.encode("utf-8", "replace").decode()  # half a character can neither be stored nor sent
        try:
            if not text.strip():
                return
            if not self._process_special_command(text):
                for path in mentioned(text, self.product.tools.folder):
                    self.attach(path)
                self.attached += resources_in(self, text)
                message = message_with(text, self.attached)
                self.attached.clear()
                self.send(message)
            save_state(self._state_file, self.history, self.session_id)
        except KeyboardInterrupt:  # between two steps
            self._ended = self._ended or not self.ui.interactive
        except Exception as error:
            self._report("Error", error)

    def attach(self, path: Path) -> AttachedFile:
        """Attach a file to the next message, once.

        Raises:
            InvalidRequest: it cannot be attached.
        """
        found = run_blocking(attach, self.product, self.caller, path)
        self.attached[:] = [*(file for file in self.attached if file.path != path), found]
        return found

    def send(self, message: Message) -> None:
        """Take a turn with this message of the user; returns when it is answered, or waits for an answer elsewhere.

        Raises:
            NotFound: the session was deleted elsewhere.
        """
        try:
            self._mirror()
        except NotFound as error:
            raise NotFound(DELETED) from error
        before = self.history.serialize()
        self.history.extend([message])
        if self.conversation.summaries:  # what a summary stands for would reach the model from the session
            self.session_id, self.conversation.summaries = None, 0
        self.conversation.attachments = message.attachments  # which the history does not keep
        sent = [message]
        if not self.session_id:
            sent = [item for item in self.history.conversation() if item.role is not Role.SYSTEM]
        try:
            asked = [item.as_stored() for item in self.history.conversation()]  # with what is known of their origin
            self._take_turn(lambda: self._process_messages_with_llm(asked))
        finally:
            if not self._mirror(sent):
                self.history.deserialize(before)  # the message was not taken

    def resume(self, session_id: str) -> None:
        """Continue that session: its messages are the history and are shown, its open questions are asked.

        Raises:
            NotFound: there is no such session.
        """
        conversation = self.conversation
        session = conversation.open(session_id)
        self._mirrored = 0
        self.history.clear_history()
        self._mirror()
        for message in session.visible_messages[-SHOWN:]:
            show = self.ui.display_user_message if message.role is Role.USER else self.ui.display_assistant_message
            show(message.text())
        status = conversation.last.status if conversation.last is not None else ""
        if status == "interrupted":
            self.ui.display_system_message(INTERRUPTED)
        elif status in ("running", "suspended"):
            waits = conversation.proceed if conversation.is_decided() else conversation.response
            self._take_turn(conversation.rejoin if status == "running" else waits)
            self._mirror()

    def reload(self) -> str:
        """Read configuration and context again; what is in use now, for the user.

        Raises:
            AgentError: they cannot be used; what was there stays.
        """
        earlier = self.config.settings
        self.config.reload()
        try:
            product = run_blocking(console_product, self.config.settings, self.folder)
        except AgentError:
            self.config.settings = earlier
            raise
        old = self.product
        self._use(product)
        kept, self.history = self.history.serialize(), self._new_history()
        self.history.deserialize({"messages": kept["messages"]})
        run_blocking(old.close)
        return f"The configuration is in use: model {self.conversation.model}."

    def quit(self) -> None:
        """End the program after this command, and with it a turn that runs."""
        self._ended = True
        if self.answering:
            self.conversation.stop()

    def shutdown(self) -> None:
        """End what runs and close what was opened; the session stays."""
        self.ui.close()  # its line of status asks the conversation
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            run_blocking(conversation.runner.close)
            run_blocking(conversation.product.close)

    def _initialize_dcm(self) -> bool:
        self._use(run_blocking(console_product, self.config.settings, self.folder))  # the context is a part of it
        return True

    def _initialize_lial(self) -> bool:
        return True  # the model is a part of the product too

    def _use(self, product: ConsoleProduct) -> None:
        runner, caller = Runner(product.services, product.profile), RunCaller(OWNER, product.services.core_key)
        if self._conversation is None:
            self._conversation = Conversation(product, runner, caller)
        else:
            self._conversation = replace(self._conversation, product=product, runner=runner, caller=caller)

    def _initialize_teps(self) -> bool:
        return True  # tools run in the conversation's runs, and their questions are asked here

    def _setup_initial_context(self) -> None:
        def save(attachment: Attachment) -> Path | None:
            folder = self.config.settings.data_dir / "attachments" / (self.session_id or "")
            return run_blocking(saved, self.product.services.files, self.caller.core_key, attachment, folder)

        def status() -> str:
            conversation = self.conversation
            tokens = f"{conversation.tokens:,} tokens" if conversation.tokens else ""
            return " · ".join(filter(None, (conversation.model, conversation.persona, self.session_id, tokens)))

        self.history = self._new_history()
        self.ui.complete = partial(complete, self)
        self.ui.during_turn = self._process_special_command
        self.ui.history_file = self.config.settings.data_dir / "chat_history"
        self.ui.status, self.ui.save = status, save
        if session_id := load_state(self._state_file, self.history):
            with suppress(NotFound):  # without it the messages start another session
                self.session_id = session_id

    def _process_messages_with_llm(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return self.conversation.send_messages(messages)

    def _handle_tool_request(self, tool_request: dict[str, Any]) -> None:
        conversation = self.conversation
        asked = next((item for item in conversation.questions() if item.call_id == tool_request["request_id"]), None)
        while asked is not None and not conversation.is_answered(asked):
            elsewhere = partial(conversation.is_answered, asked)
            answer = decided(self.ui, self.product, asked.card, tool_request, asked.code, elsewhere)
            try:
                if answer is not None and answer.allowed and asked.tool == f"{SIGN_IN}{asked.arguments.get('server')}":
                    self.ui.display_system_message(sign_in(self, str(asked.arguments["server"])))
                if answer is None and self.ui.interactive:
                    conversation.expire(asked)
                else:
                    conversation.answer(asked, answer or Answer(False, NO_TERMINAL))
            except Conflict:  # another door was faster
                return
            except InvalidRequest as error:  # arguments that do not fit
                self._report("Approval Error", error)

    def _process_special_command(self, user_input: str) -> bool:
        if not user_input.startswith("/"):
            return False
        name, argument = [*user_input.split(maxsplit=1), ""][:2]
        try:
            if name.lower() not in COMMANDS and not self.answering and pick(self, name, argument):
                return False
            command = find_command(name)
            if self.answering and not command.during_turn:
                raise InvalidRequest(NO_TURN.format(name=command.name))
            if shown := command.run(self, argument.strip()):
                self.ui.display_system_message(shown)
        except AgentError as error:
            self.ui.display_error_message("Command", str(error))
        except KeyboardInterrupt:
            self.ui.display_error_message("Command", f"{name} was stopped.")
        return True

    def _take_turn(self, respond: Callable[[], dict[str, Any]]) -> None:
        conversation, self.failed = self.conversation, False
        try:
            response = self._answered(respond)
            while (request := response["tool_request"]) is not None and not self._ended:
                self._handle_tool_request(request)
                waiting = conversation.response()
                response = waiting if waiting["tool_request"] else self._answered(conversation.proceed)
        except AgentError as error:
            self._report("Turn Error", error)
        except KeyboardInterrupt:
            if open_ones := conversation.questions():
                self.ui.display_system_message(STAYS_OPEN.format(codes=" and ".join(item.code for item in open_ones)))
        status = conversation.last.status if conversation.last is not None else ""
        self.failed = self.failed or status in ("failed", "interrupted")
        self._ended = self._ended or (status == "cancelled" and not self.ui.interactive)

    def _answered(self, respond: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.answering = True
        try:
            with self.ui.answering() as self.conversation.show:
                return respond()
        finally:
            self.answering = False

    def _report(self, kind: str, error: Exception) -> None:
        self.failed, self.errors.debug = True, self.ui.debug_mode
        self.ui.display_error_message(kind, self.errors.handle_error(kind, "", error))

    def _mirror(self, sent: Sequence[Message] = ()) -> bool:
        """Take over what the session has got since; False: what was `sent` is not in it."""
        session = self.conversation.session(self.session_id)
        new = session.messages[self._mirrored :] if session is not None else ()
        self._mirrored += len(new)
        if [message.text() for message in new[: len(sent)]] == [message.text() for message in sent]:
            self.history.extend(new[len(sent) :])
        elif new and session is not None:  # something came before
            self.history.clear_history()
            self.history.extend(session.messages)
        return bool(new) or not sent

    def _new_history(self) -> MessageManager:
        return MessageManager(self.config.get_message_history_settings(), summarise=self.conversation.summarise)

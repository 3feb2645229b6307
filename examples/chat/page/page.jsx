// A chat with an agent: its text, its calls, what waits for the customer, and a tool that the page carries out.
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const cart = { fruit: "apple", pieces: 3 };
const tools = [{ name: "read_cart", description: "Read the cart of the page.", inputSchema: { type: "object", properties: {} } }];
const id = (location.hash ||= `#${crypto.randomUUID()}`).slice(1);

function Chat() {
  const [text, setText] = useState("");
  const chat = useChat({
    id,
    resume: true,
    transport: new DefaultChatTransport({ api: "/api/chat", body: { tools } }),
    sendAutomaticallyWhen: (all) =>
      lastAssistantMessageIsCompleteWithToolCalls(all) || lastAssistantMessageIsCompleteWithApprovalResponses(all),
    onToolCall: ({ toolCall: { toolName, toolCallId } }) => {
      if (toolName === "read_cart") chat.addToolOutput({ tool: toolName, toolCallId, output: cart });
    },
  });
  const send = (event) => {
    event.preventDefault();
    chat.sendMessage({ text });
    setText("");
  };
  return (
    <>
      {chat.messages.map((message) => (
        <article key={message.id} aria-label={message.role}>
          {message.parts.map((part, at) => <Part key={at} part={part} chat={chat} />)}
        </article>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        <button>Send</button>
      </form>
      <p role="status">{chat.status}</p>
    </>
  );
}

function Part({ part, chat }) {
  if (part.type === "text") return part.providerMetadata?.perdure?.superseded ? null : <p>{part.text}</p>;
  if (!isToolUIPart(part)) return null;
  if (part.state === "approval-requested") {
    const answer = (approved) => () => chat.addToolApprovalResponse({ id: part.approval.id, approved });
    return (
      <fieldset>
        <legend>{part.title}</legend>
        <button onClick={answer(true)}>Approve</button>
        <button onClick={answer(false)}>Reject</button>
      </fieldset>
    );
  }
  if (part.type === "tool-ask_person" && part.state === "input-available") {
    const answer = (event) => {
      event.preventDefault();
      const output = new FormData(event.target).get("answer");
      chat.addToolOutput({ tool: "ask_person", toolCallId: part.toolCallId, output });
    };
    return <form onSubmit={answer}><label>{part.title}<input name="answer" /></label><button>Answer</button></form>;
  }
  return <p>{part.type.slice(5)}: {part.state === "output-available" ? JSON.stringify(part.output) : part.state}</p>;
}

createRoot(document.getElementById("chat")).render(<Chat />);

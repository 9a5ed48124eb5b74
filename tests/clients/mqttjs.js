// MQTT.js, driven by tests: one JSON command per line on standard input, one JSON event per line on standard output.
//
//   {"do": "connect", "url": ..., "options": {...}}          {"event": "connect", "sessionPresent": ...}
//   {"do": "subscribe", "topic": ..., "options": {...}}      {"event": "subscribed", "granted": [...]}
//   {"do": "unsubscribe", "topic": ...}                      {"event": "unsubscribed"}
//   {"do": "publish", "topic": ..., "payload": ..., "options": {...}}    {"event": "published"}
//   {"do": "end"}                                            {"event": "ended"}
//
// Besides, {"event": "message", ...} for each message and {"event": "error", "message": ...} for each error.

const mqtt = require("mqtt");
const readline = require("node:readline");

let client = null;

function tell(event) {
  process.stdout.write(JSON.stringify(event) + "\n");
}

function answer(name, more) {
  return (error, result) => tell(error ? { event: "error", message: String(error) } : { event: name, ...more(result) });
}

const commands = {
  connect({ url, options }) {
    client = mqtt.connect(url, { reconnectPeriod: 0, ...options });
    client.on("connect", (connack) => tell({ event: "connect", sessionPresent: connack.sessionPresent }));
    client.on("error", (error) => tell({ event: "error", message: String(error) }));
    client.on("message", (topic, payload, packet) =>
      tell({
        event: "message",
        topic,
        payload: payload.toString(),
        qos: packet.qos,
        retain: packet.retain,
        dup: packet.dup,
        properties: packet.properties && { ...packet.properties, correlationData: undefined },
      }),
    );
  },
  subscribe({ topic, options }) {
    client.subscribe(topic, options, answer("subscribed", (granted) => ({ granted: granted.map((one) => one.qos) })));
  },
  unsubscribe({ topic }) {
    client.unsubscribe(topic, answer("unsubscribed", () => ({})));
  },
  publish({ topic, payload, options }) {
    client.publish(topic, payload, options, answer("published", () => ({})));
  },
  end() {
    client.end(false, {}, answer("ended", () => ({})));
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});

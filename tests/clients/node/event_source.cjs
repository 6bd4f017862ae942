// node event_source.cjs URL: a line "open" for each connection, and a line for each message: its id and its LSN.
const { EventSource } = require("eventsource");

const source = new EventSource(process.argv[2]);
source.onopen = () => console.log("open");
source.onmessage = (message) => console.log(`${message.lastEventId} ${JSON.parse(message.data).lsn}`);
source.addEventListener("failure", (message) => console.log(`failure ${message.data}`));
source.onerror = () => {
  if (source.readyState === EventSource.CLOSED) console.log("closed");
};

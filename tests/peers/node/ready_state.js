// Node 14 and newer report a socket that was never connected as open; pg 4 then never connects it.
const net = require("net");

net.Stream = class extends net.Socket {
  get readyState() {
    return this.pending && !this.connecting ? "closed" : super.readyState;
  }
};

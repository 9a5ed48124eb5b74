// Aedes on a port of 127.0.0.1: node aedes.js PORT
const { Aedes } = require("aedes");
const net = require("net");

Aedes.createBroker().then((broker) => net.createServer(broker.handle).listen(Number(process.argv[2]), "127.0.0.1"));
